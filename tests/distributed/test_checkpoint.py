"""Checkpoints in real processes: bit for bit, under another plan, on another number of ranks, through DCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import SERVED, equal_everywhere, flat, net, said, same, train
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire import Comm, Layout, Method, Overlap
from thinwire.core.method import METHODS
from thinwire.engine.checkpoint import read
from thinwire.sync import Grad

ONE = Overlap()
SMALL = Overlap(bucket_mb=2048 / 2**20, chunk_mb=2048 / 2**20)
STATEFUL = [
    name
    for name in METHODS
    if METHODS[name]().exchange.init(Layout.flat(600), Comm(0, 2)) and METHODS[name]().sync.of == Grad()
]  # every method that remembers something; Adam's momentum belongs to the optimizer
IN_ORDER = ["backup-workers:spares=0", "ssp:staleness=0,reads=snapshot", "r2sp:profile=2,servers=1"]
IN_ORDER += ["consensus-admm:every=3", "dbpg:tau=0,blocks=2,l1=0.001,kkt=0.0005"]
"""Served methods on which the order of arrivals has no influence."""
SAVED, LAST = 4, 6  # steps; in the middle of a round of three, and to its end
DOUBLE = "ef-signsgd"  # it has memories on both hops, and every rank owns a shard


def made(name: str, overlap: Overlap = ONE) -> Method:
    method = METHODS.parse(name)
    return Method(method.exchange, method.sync, overlap)


def start(name: str, overlap: Overlap = ONE) -> tuple[nn.Module, torch.optim.Optimizer, tw.Wire]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, tw.attach(model, optimizer, made(name, overlap), min_size=0)


def saved(folder: str, names: list[str]) -> dict[str, Tensor]:
    """All steps in one go; the state on the way goes to one file per rank and method."""
    out = {}
    for name in names:
        model, optimizer, wire = start(name)
        train(model, optimizer, range(SAVED if wire.trains else 0), closures=name in SERVED)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "wire": wire.state_dict()}
        torch.save(state, Path(folder) / f"{name}.{dist.get_rank()}")
        train(model, optimizer, range(SAVED, LAST if wire.trains else SAVED), closures=name in SERVED)
        wire.detach()
        out[name] = flat(model)
    return out


def load(folder: str, name: str, rank: int) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(Path(folder) / f"{name}.{rank}")  # weights_only is the default
    return state


def resumed(folder: str, names: list[str]) -> dict[str, Tensor]:
    out = {}
    for name in names:
        model, optimizer, wire = start(name)
        state = load(folder, name, dist.get_rank())
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        wire.load_state_dict(state["wire"])
        if name in SERVED:
            assert same(wire.state_dict(), state["wire"]), name
        train(model, optimizer, range(SAVED, LAST if wire.trains else SAVED), closures=name in SERVED)
        wire.detach()
        out[name] = flat(model)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def whole(folder: str) -> list[dict[str, Tensor]]:
    return on_ranks(saved, 2, folder, [*STATEFUL, *SERVED, *IN_ORDER])


def test_a_run_resumes_bit_for_bit(folder: str, whole: list[dict[str, Tensor]]) -> None:
    """Where messages of several workers meet, that is up to the order in which they arrive; the state is the same."""
    for before, after in zip(whole, on_ranks(resumed, 2, folder, [*STATEFUL, *SERVED, *IN_ORDER]), strict=True):
        for name in [*STATEFUL, *IN_ORDER]:
            assert torch.equal(before[name], after[name]), name


SIZES = {name: p.numel() for name, p in net().named_parameters()}


def elements(states: list[dict[str, Any]]) -> dict[tuple[str, str, int], Tensor]:
    """Every memory as one vector by (memory, parameter, rank or -1 for owners); NaN where nobody keeps an element."""
    out: dict[tuple[str, str, int], Tensor] = {}
    for state in states:
        for key, one in state.items():
            for name, data in one["tensors"].items():
                memory, at, parameter = name.split("|")
                everybody = memory.startswith(("up.send.", "send."))
                place = memory, parameter, int(key[4:]) if everybody else -1
                whole = out.setdefault(place, torch.full((SIZES[parameter],), torch.nan))
                whole[int(at) : int(at) + len(data)] = data
    return out


def replanned(folder: str, names: list[str]) -> dict[str, Any]:
    out = {}
    for name in names:
        model, optimizer, wire = start(name, SMALL)
        state = load(folder, name, dist.get_rank())
        wire.load_state_dict(state["wire"])
        out[name] = wire.state_dict()
        train(model, optimizer, range(SAVED, SAVED + 1))
        wire.detach()
    return out


def test_under_another_plan_every_element_is_restored(folder: str, whole: list[dict[str, Tensor]]) -> None:
    results = on_ranks(replanned, 2, folder, STATEFUL)
    for name in STATEFUL:
        before = elements([load(folder, name, rank)["wire"] for rank in range(2)])
        after = elements([result[name] for result in results])
        assert before.keys() == after.keys(), name
        assert all(torch.equal(before[key].view(torch.int32), after[key].view(torch.int32)) for key in before), name


def resized(folder: str, name: str, how: str) -> Any:
    model, optimizer, wire = start(name)
    states = [load(folder, name, rank)["wire"] for rank in range(2)]
    if how != "mean":
        told = said(lambda: wire.load_state_dict(states[0], on_resize=how))  # type: ignore[arg-type]
        state = wire.state_dict()
        wire.detach()
        return told, state
    alone = said(lambda: wire.load_state_dict(states[0]))
    wire.load_state_dict(states)
    state = wire.state_dict()
    train(model, optimizer, range(SAVED, LAST))
    wire.detach()
    return alone, state, equal_everywhere(flat(model))


def both_resized(folder: str) -> list[Any]:
    return [resized(folder, name, "mean") for name in (DOUBLE, "diana")]


@pytest.mark.parametrize("ranks", [1, 3])
def test_on_another_number_of_ranks_the_mean_is_kept(ranks: int, folder: str, whole: list[dict[str, Tensor]]) -> None:
    for name, results in zip(
        (DOUBLE, "diana"), zip(*on_ranks(both_resized, ranks, folder), strict=True), strict=True
    ):
        assert "the mean needs all their states; write wire.load_state_dict([" in results[0][0]
        assert all(result[2] for result in results)
        means = []
        for states in ([load(folder, name, rank)["wire"] for rank in range(2)], [result[1] for result in results]):
            kept: dict[tuple[str, str], list[Tensor]] = {}
            for (memory, parameter, _), values in elements(states).items():
                kept.setdefault((memory, parameter), []).append(values)
            means.append({key: torch.stack(values).mean(0) for key, values in kept.items()})
        assert means[0].keys() == means[1].keys()
        for key, values in means[0].items():
            assert torch.allclose(values, means[1][key], rtol=1e-5, atol=1e-7), key


def reset_or_refused(folder: str) -> list[Any]:
    return [resized(folder, DOUBLE, how) for how in ("reset", "error")]


def test_or_the_memories_are_reset_or_the_state_is_refused(folder: str, whole: list[dict[str, Tensor]]) -> None:
    (told, state), (refusal, _) = on_ranks(reset_or_refused, 1, folder)[0]
    assert told == ""
    assert state["rank0"]["round"] == SAVED
    assert all(not t.any() for t in state["rank0"]["tensors"].values())
    assert 'saved on 2 ranks, loaded on 1; write on_resize="mean" or "reset"' in refusal


def refused(folder: str) -> list[str]:
    _, _, wire = start("ecq-sgd:alpha=0.3")
    mine = load(folder, "ecq-sgd", dist.get_rank())["wire"]
    other = load(folder, "ecq-sgd", 1 - dist.get_rank())["wire"]
    told = [said(lambda: wire.load_state_dict(mine))]
    wire.switch(made("ecq-sgd"))
    told.append(said(lambda: wire.load_state_dict(other)))
    told.append(said(lambda: wire.load_state_dict({"model": 1})))
    foreign = {key: {**one, "parameters": {**one["parameters"], "0.bias": [3]}} for key, one in mine.items()}
    told.append(said(lambda: wire.load_state_dict(foreign)))
    told.append(said(lambda: wire.load_state_dict(mine, on_resize="forget")))  # type: ignore[arg-type]
    wire.detach()
    return told


def test_another_method_is_refused_and_the_field_is_named(folder: str, whole: list[dict[str, Tensor]]) -> None:
    for method, rank, nothing, model, word in on_ranks(refused, 2, folder):
        assert "another method: method.exchange.up.memory.alpha was 0.2 and is 0.3" in method
        assert "load this rank's own file" in rank
        assert "not a state of thinwire" in nothing
        assert "saved from another model: 0.bias has shape [24] here and [3] there" in model
        assert "write one of 'mean', 'reset', 'error'" in word


def through_dcp(folder: str) -> bool:
    model, optimizer, wire = start(DOUBLE)
    train(model, optimizer, range(SAVED))
    dcp.save({"wire": wire}, checkpoint_id=folder)
    expected = wire.state_dict()
    wire.detach()
    _, _, again = start(DOUBLE)
    dcp.load({"wire": again}, checkpoint_id=folder)
    got = again.state_dict()
    again.detach()
    key = f"rank{dist.get_rank()}"
    same = all(torch.equal(t, got[key]["tensors"][name]) for name, t in expected[key]["tensors"].items())
    return same and got[key]["round"] == SAVED


def from_dcp(folder: str) -> bool:
    model, optimizer, wire = start(DOUBLE)
    states = read(folder)
    wire.load_state_dict(states)
    train(model, optimizer, range(SAVED, LAST))
    wire.detach()
    return len(states) == 2 and equal_everywhere(flat(model))


@pytest.mark.filterwarnings("ignore")
def test_torch_distributed_checkpoint(tmp_path: Path) -> None:
    assert all(on_ranks(through_dcp, 2, str(tmp_path)))
    assert all(on_ranks(from_dcp, 3, str(tmp_path)))


def hooked(steps: int, state: Any) -> tuple[Tensor, Any]:
    """DDP with small buckets: it has one bucket in the first step, and others from the second on."""
    model = DistributedDataParallel(net(), bucket_cap_mb=2048 / 2**20)
    kept, hook = tw.ddp_hook(made(DOUBLE), model, min_size=0)
    model.register_comm_hook(kept, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if state is not None:
        model.load_state_dict(state[dist.get_rank()][1])
        kept.load_state_dict(state[dist.get_rank()][0])
    train(model, optimizer, range(0 if state is None else 4, steps))
    return flat(model), (kept.state_dict(), model.state_dict())


def test_the_hook_keeps_memories_by_parameter_when_buckets_change() -> None:
    """Resuming goes through the one bucket of the first step again; memories must survive that."""
    before = on_ranks(hooked, 2, 4, None)
    for _, (state, _) in before:
        (one,) = state.values()
        assert one["round"] == 4
        found = {key.split("|")[2] for key in one["tensors"]}
        assert found == {"0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"}
        assert all(t.any() for key, t in one["tensors"].items() if key.startswith("up.send") and t.numel() > 30)
    after = on_ranks(hooked, 2, 5, [state for _, state in before])
    assert torch.equal(after[0][0], after[1][0])
    (one,) = after[0][1][0].values()
    assert one["round"] == 5
