"""Methods that exchange models, through attach in real processes: they train, agree, save, resume, switch, refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import MODELS, batch, equal_everywhere, flat, loss, net, said, train
from ranks import on_ranks
from torch import Tensor, nn

import thinwire as tw
from thinwire import Method, Overlap, methods
from thinwire.core.method import METHODS
from thinwire.sync import Grad, Param, Sync
from thinwire.topology import from_edges

pytestmark = pytest.mark.timeout(300)  # many processes, and machines that are busy
SMALL = Overlap(bucket_mb=2048 / 2**20, chunk_mb=2048 / 2**20)


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def everybody(x: Tensor) -> Tensor:
    """The vectors of all ranks, one per row."""
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, x)
    return torch.stack(rows)


def some_steps(names: list[str]) -> dict[str, tuple[float, float, float, float]]:
    """By method: the loss of the mean model before and after, the error of that model, and that of the distance."""
    out = {}
    for name in names:
        model = net()
        optimizer = sgd(model, 0.1)
        before = loss(model, batch(99, 0)).item()
        with tw.attach(model, optimizer, METHODS.parse(name), min_size=100) as wire:
            train(model, optimizer, range(15))
            found = wire.consensus()
            rows = everybody(flat(model))
            wrong = (torch.cat([found.model[k].flatten() for k, _ in model.named_parameters()]) - rows.mean(0)).norm()
            apart = (rows - rows.mean(0)).square().sum(1).mean().sqrt()
        model.load_state_dict(found.model)
        out[name] = before, loss(model, batch(99, 0)).item(), wrong.item(), abs(found.distance - apart.item())
    return out


def test_every_method_trains_and_tells_the_mean_model() -> None:
    results = on_ranks(some_steps, 4, MODELS)
    for name in MODELS:
        before, after, wrong, apart = results[0][name]
        assert after < 0.4 * before, name
        assert wrong < 1e-5, name
        assert apart < 1e-4, name


def beside(method: Method, other: Method, steps: int = 5) -> float:
    ends = []
    for one in (method, other):
        model = net()
        optimizer = sgd(model)
        with tw.attach(model, optimizer, one, min_size=0):
            train(model, optimizer, range(steps))
        ends.append(flat(model))
    return (ends[0] - ends[1]).abs().max().item()


def reductions() -> dict[str, float]:
    """Methods that are synchronous SGD, momentum included, for these settings."""
    whole = methods.sgd()
    return {
        "complete graph": beside(methods.d_psgd(topology="complete", early=False), whole),
        "complete deepsqueeze": beside(methods.deepsqueeze("identity", topology="complete"), whole),
        "local sgd": beside(methods.local_sgd(every=1), whole),
        "every": beside(methods.d_psgd(topology="complete", early=False, every=4), methods.local_sgd(every=4)),
    }


def test_a_complete_graph_is_synchronous_sgd() -> None:
    for result in on_ranks(reductions, 4):
        assert max(result.values()) < 1e-6, result


def means() -> dict[str, float]:
    """How far one exchange moves the mean of the models, relative to its length."""
    moved = {}
    for name in (
        "d-psgd",
        "choco-sgd",
        "deepsqueeze",
        "deepsqueeze:compressor=scaled-sign",
        "d-psgd:topology=one-peer",
    ):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with tw.attach(model, optimizer, METHODS.parse(name), min_size=100):
            train(model, optimizer, range(5))
            before = everybody(flat(model)).double().mean(0)
            optimizer.zero_grad()
            loss(model, batch(5)).backward()
            grad = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            expected = before - 0.05 * everybody(grad).double().mean(0)
            optimizer.step()
            after = everybody(flat(model)).double().mean(0)
        moved[name] = ((after - expected).norm() / before.norm()).item()
    return moved


def test_an_exchange_keeps_the_mean() -> None:
    """To the precision of float32; tests/exchange tests it to 1e-12."""
    for result in on_ranks(means, 4):
        assert max(result.values()) < 2e-7, result


def local_steps() -> tuple[list[float], int, float]:
    """Bytes after each of eight steps with every=4; then steps inside no_sync."""
    model = net()
    optimizer = sgd(model)
    sent = []
    with tw.attach(model, optimizer, methods.choco_sgd(every=4), min_size=0) as wire:
        for step in range(8):
            train(model, optimizer, range(step, step + 1))
            sent.append(wire.stats()["bytes_sent"])
        with wire.no_sync():
            train(model, optimizer, range(8, 11))
        quiet = wire.stats()["bytes_sent"]
        train(model, optimizer, range(11, 12))  # the fourth local step exchanges
        return sent, int(wire.stats()["rounds"]), quiet


def test_local_steps_send_nothing() -> None:
    for sent, rounds, quiet in on_ranks(local_steps, 2):
        assert sent[2] == 0 < sent[3] == sent[6] < sent[7]
        assert quiet == sent[7]
        assert rounds == 3


def overlapped() -> list[str]:
    """The order of events in a step of D-PSGD: models travel before backward has ended."""
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, methods.d_psgd(), min_size=0) as wire:
        train(model, optimizer, range(2))
        optimizer.zero_grad()
        value = loss(model, batch(2))
        value.backward()
        sent = bool(wire._loop.buckets[0].open)
        optimizer.step()
        return [str(sent), *(span.what for span in wire.events())]


def test_models_before_the_step_travel_during_backward() -> None:
    for sent, *events in on_ranks(overlapped, 2):
        assert sent == "True"
        assert events[0] == "launch"
        assert "wire" in events


def start(name: str, overlap: Overlap = Overlap()) -> tuple[nn.Module, torch.optim.Optimizer, tw.Wire]:  # noqa: B008
    model, method = net(), METHODS.parse(name)
    optimizer = sgd(model, 0.02)
    return model, optimizer, tw.attach(model, optimizer, Method(method.exchange, method.sync, overlap), min_size=100)


def saved(folder: str, names: list[str]) -> dict[str, Tensor]:
    """Seven steps in one go; the state after five, which is between two exchanges where every=2."""
    out = {}
    for name in names:
        model, optimizer, wire = start(name)
        train(model, optimizer, range(5))
        state = {"optimizer": optimizer.state_dict(), "wire": wire.state_dict()}
        torch.save(state, Path(folder) / f"{name}.{dist.get_rank()}")
        train(model, optimizer, range(5, 7))
        wire.detach()
        out[name] = flat(model)
    return out


def resumed(folder: str, names: list[str], overlap: Overlap) -> dict[str, Tensor]:
    """The model itself comes from the wire's state: ranks differ, so each has a file of its own."""
    out = {}
    for name in names:
        model, optimizer, wire = start(name, overlap)
        state = torch.load(Path(folder) / f"{name}.{dist.get_rank()}")
        optimizer.load_state_dict(state["optimizer"])
        wire.load_state_dict(state["wire"])
        train(model, optimizer, range(5, 7))
        wire.detach()
        out[name] = flat(model)
    return out


ADMM = ("d-admm", "edge-admm")  # ranks take turns, so that a state is saved between two rounds
KEPT = [
    *(f"{name}:every=5" if name in ADMM else name for name in MODELS),
    *("choco-sgd:copies=true,every=2", "deepsqueeze:every=2", "d-psgd:every=2"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def whole(folder: str) -> list[dict[str, Tensor]]:
    return on_ranks(saved, 4, folder, KEPT)


def test_a_run_resumes_bit_for_bit(folder: str, whole: list[dict[str, Tensor]]) -> None:
    for before, after in zip(whole, on_ranks(resumed, 4, folder, KEPT, Overlap()), strict=True):
        for name in KEPT:
            assert torch.equal(before[name], after[name]), name


def test_a_run_goes_on_under_another_plan(folder: str, whole: list[dict[str, Tensor]]) -> None:
    """Other buckets draw other noise; models stay near, those of DeepSqueeze within what its messages scatter."""
    names = ["choco-sgd", "deepsqueeze", "d-psgd", "dcd-psgd"]
    for before, after in zip(whole, on_ranks(resumed, 4, folder, names, SMALL), strict=True):
        for name in names:
            near = 0.5 if name == "deepsqueeze" else 0.1
            assert (before[name] - after[name]).norm() < near * before[name].norm(), name


def on_fewer(folder: str, names: list[str]) -> dict[str, tuple[bool, bool, float]]:
    out = {}
    for name in names:
        model, optimizer, wire = start(name)
        states = [torch.load(Path(folder) / f"{name}.{rank}") for rank in range(4)]
        wire.load_state_dict([state["wire"] for state in states])
        rows = []
        for state in states:
            held = next(iter(state["wire"].values()))["tensors"]
            rows.append(torch.cat([held[f"model|0|{k}"] for k, _ in model.named_parameters()]))
        mean = torch.stack(rows).double().mean(0)
        near = (flat(model).double() - mean).abs().max().item()
        equal = equal_everywhere(flat(model))
        train(model, optimizer, range(5, 8))
        finite = bool(flat(model).isfinite().all())
        wire.detach()
        out[name] = equal, finite, near
    return out


def test_on_fewer_ranks_all_start_from_the_mean_model(folder: str, whole: list[dict[str, Tensor]]) -> None:
    names = [name for name in KEPT if "moniqua" not in name]
    for result in on_ranks(on_fewer, 2, folder, names):
        for name, (equal, finite, near) in result.items():
            assert equal, name
            assert finite, name
            assert near < 1e-6, name


def switched() -> list[tuple[bool, float]]:
    """Gossip, then synchronous, then gossip again."""
    model = net()
    optimizer = sgd(model)
    told = []
    with tw.attach(model, optimizer, methods.deepsqueeze(), min_size=100) as wire:
        train(model, optimizer, range(5))
        for step, method in enumerate((methods.qsgd(), methods.choco_sgd(), methods.dcd_psgd(), methods.sgd())):
            mean = wire.consensus().model
            wire.switch(method)
            kept = max((p - mean[k]).abs().max().item() for k, p in model.named_parameters())
            told.append((equal_everywhere(flat(model)), kept))
            train(model, optimizer, range(3 * step + 5, 3 * step + 8))
        told.append((equal_everywhere(flat(model)), wire.consensus().distance))
    return told


def test_switching_starts_from_the_mean_model() -> None:
    for result in on_ranks(switched, 4):
        for equal, kept in result:
            assert equal
            assert kept < 1e-6


def half_precision() -> float:
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = [tuple(t.bfloat16() for t in batch(step)) for step in range(60)]
    with tw.attach(model, optimizer, methods.choco_sgd(), min_size=0):
        train(model, optimizer, range(60), lambda step: data[step])  # type: ignore[arg-type, return-value]
    return loss(model.float(), batch(99, 0)).item()


def test_bfloat16_models_gossip() -> None:
    assert all(value < 0.4 for value in on_ranks(half_precision, 2))


def refused() -> list[str]:
    model = net()
    optimizer = sgd(model)

    def attempt(method: Method, **more: Any) -> str:
        return said(lambda: tw.attach(model, optimizer, method, **more))

    exchange = methods.deepsqueeze().exchange
    return [
        attempt(methods.d_psgd(topology="hypercube")),
        attempt(Method(exchange)),
        attempt(Method(exchange, Sync(of=Param(), warmup=5))),
        attempt(methods.qsgd(), drop_dead=True),
        attempt(methods.choco_sgd(), drop_dead=True),
        attempt(methods.choco_sgd(topology="one-peer")),
        attempt(Method(exchange, Sync(of=Grad()))),
        attempt(methods.d_psgd(topology=from_edges([(0, 1)]))),
    ]


def test_what_does_not_fit_is_refused_before_anything_is_sent() -> None:
    for told in on_ranks(refused, 3):
        assert "power of two" in told[0]
        assert "mix exchanges models" in told[1]
        assert "write Sync(of=Param())" in told[1]
        assert "no uncompressed steps" in told[2]
        assert "needs every rank: write deepsqueeze(), or d_psgd()" in told[3]
        assert "copies=True" in told[4]
        assert "changes its edges" in told[5]
        assert "write Sync(of=Param())" in told[6]
        assert "ValueError" in told[7]


def taking_turns() -> tuple[str, int, float]:
    """Seven steps in rounds of five: a state in the middle of a round is refused, and meeting elsewhere ends it."""
    model = net()
    optimizer = sgd(model, 0.02)
    with tw.attach(model, optimizer, methods.d_admm(every=5), min_size=0) as wire:
        train(model, optimizer, range(5))
        state = wire.state_dict()
        train(model, optimizer, range(5, 7))
        told = said(wire.state_dict)
        found = wire.consensus()
        dist.barrier()
        train(model, optimizer, range(7, 9))
        rounds = int(wire.stats()["rounds"])
    assert state
    return told, rounds, found.distance


def test_admm_ends_a_round_before_ranks_meet_elsewhere() -> None:
    for told, rounds, distance in on_ranks(taking_turns, 4):
        assert "save after a multiple of 5 steps" in told
        assert rounds == 2
        assert distance > 0


def not_finite() -> str:
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, methods.deepsqueeze(), min_size=0):
        train(model, optimizer, range(2))
        if dist.get_rank() == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] = float("nan")
        return said(lambda: train(model, optimizer, range(2, 6)))


def test_a_model_that_is_not_finite_is_an_error_on_every_rank() -> None:
    for told in on_ranks(not_finite, 3):
        assert "PeerError" in told
        assert "rank 1" in told
        assert "not finite" in told
