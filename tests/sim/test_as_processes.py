"""The clock and real processes: the same coroutines, the same bytes and the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import MUON, equal_everywhere, flat, net
from nets import loss as loss_of
from ranks import on_ranks
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import thinwire as tw
from thinwire.exchange import AllGather, AllReduce, Server
from thinwire.memory import ErrorFeedback
from thinwire.server import Asgd, Backup
from thinwire.sync import Delta

STEPS, SAMPLES = 6, 8
METHODS = {
    "qsgd": tw.methods.qsgd(),
    "ecq-sgd": tw.methods.ecq_sgd(),
    "ef-signsgd": tw.methods.ef_signsgd(),
    "choco-sgd": tw.methods.choco_sgd(),
    "deepsqueeze": tw.methods.deepsqueeze(),
    "d-admm": tw.methods.d_admm(),
    "late": tw.Method(AllGather(tw.Channel(tw.compressors.Qsgd(bits=4), ErrorFeedback())), tw.Sync(staleness=1)),
    "outer": tw.Method(
        AllGather(tw.Channel(tw.compressors.Qsgd(bits=4), ErrorFeedback())), tw.Sync(Delta(), every=2)
    ),
    "server": tw.Method(Server(tw.Channel(tw.compressors.Qsgd(bits=8)))),
    "diloco": tw.methods.diloco(every=2, compressor="qsgd:bits=4"),
    "streaming": tw.methods.streaming_diloco(every=4, fragments=2, delay=3),
    "sparse-loco": tw.methods.sparse_loco(every=2, k=8, block=64),
    "muloco": tw.methods.muloco(every=2, compressor="k-level:k=4,block=64"),
    "pipe-sgd": tw.methods.pipe_sgd(width=3, compressor="qsgd:bits=4"),
    "cocod": tw.methods.cocod_sgd(every=4),
    "overlap": tw.methods.overlap_local_sgd(every=4),
    "easgd": tw.methods.easgd(every=2),
    "eamsgd": tw.methods.eamsgd(every=2),
    "ways": tw.Method(  # the servers wait for all, so that arrivals in any order give the same bits
        Server(tw.Channel(tw.compressors.Qsgd(bits=4), ErrorFeedback()), Backup(0)),
        tw.Sync(Delta(), every=2, staleness=None),
    ),
    "growing": tw.methods.cr_psgd(1.2, 10_000, theta=0.3, compressor="qsgd:bits=8"),  # runs of 4 steps on 4 ranks
}
SUMMED = ("cocod", "overlap", "easgd", "eamsgd")
"""Methods of which torch.distributed makes the sums, in an order of its own."""
RESUMED = ["late", "outer", "growing", "ways", "diloco", "streaming", "sparse-loco", "pipe-sgd", *SUMMED]
RESUMED += ["muloco"] if MUON else []


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x[:, :4].sin()


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9)


def muon(parameters: Iterable[nn.Parameter]) -> Optimizer:
    some = list(parameters)
    rest = AdamW([p for p in some if p.ndim != 2], lr=0.01)
    return tw.optim.Joined(torch.optim.Muon([p for p in some if p.ndim == 2], lr=0.02), rest)


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "sparse-loco": lambda parameters: AdamW(parameters, lr=0.01),
    "muloco": muon,
    "eamsgd": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
}
"""Of methods that have one of their own."""


def optimizer_of(name: str, parameters: Iterable[nn.Parameter]) -> Optimizer:
    return OPTIMIZERS.get(name, sgd)(parameters)


def joined(anchor: dict[str, Tensor]) -> Tensor:
    return torch.cat([anchor[key].flatten() for key, _ in net().named_parameters()])


def in_processes(names: list[str], steps: int) -> dict[str, tuple[Tensor, float, Tensor]]:
    found = {}
    for name in names:
        model = net()
        optimizer = optimizer_of(name, model.parameters())
        wire = tw.attach(model, optimizer, METHODS[name], min_size=0, seed=7)
        for step in range(steps):
            wire.batch(SAMPLES)
            optimizer.zero_grad()
            loss_of(model, batch(step, dist.get_rank())).backward()
            optimizer.step()
        wire.detach()  # ADMM ends its round here
        anchor = joined(wire.anchor()) if METHODS[name].sync.of.outer_loop else torch.empty(0)
        found[name] = (flat(model), wire.stats()["bytes_sent"], anchor)
    return found


def simulated(name: str, steps: int) -> list[tuple[Tensor, float, Tensor]]:
    optimizer = partial(optimizer_of, name)
    problem = tw.sim.Problem(
        net, lambda model, rank, step: loss_of(model, batch(step, rank)), optimizer, batch=SAMPLES
    )
    done = tw.simulate(METHODS[name], problem, 4, steps=steps, seed=7, min_size=0)
    anchors = [joined(anchor) for anchor in done.anchors] or [torch.empty(0)] * 4
    sent = [stats["bytes_sent"] for stats in done.stats]
    return list(zip([flat(model) for model in done.models], sent, anchors, strict=True))


def test_models_and_bytes_are_those_of_real_processes() -> None:
    names = [name for name in METHODS if name != "muloco"]  # Muon takes its time, and resumes below
    found: list[dict[str, tuple[Tensor, float, Tensor]]] = on_ranks(in_processes, 4, names, STEPS)
    for name in names:
        for rank, (model, sent, anchor) in enumerate(simulated(name, STEPS)):
            there, bytes_there, anchor_there = found[rank][name]
            if name in SUMMED:
                torch.testing.assert_close(model, there, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(anchor, anchor_there, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(model, there), (name, rank)
                assert torch.equal(anchor, anchor_there), (name, rank)
            assert torch.equal(anchor_there, found[0][name][2]), name
            assert sent <= bytes_there  # real ones ask for sizes first, where they are not known
            if name in ("qsgd", "ef-signsgd", "late", "outer", "diloco", "streaming", *SUMMED):
                assert sent == bytes_there, name


def resumed(name: str, at: int, pair: dist.ProcessGroup) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Train through, and the same again from a checkpoint in the middle, which is returned, too."""
    ends = []
    saved: dict[str, Any] = {}
    for begin in (0, at):
        model = net()
        optimizer = optimizer_of(name, model.parameters())
        wire = tw.attach(model, optimizer, METHODS[name], process_group=pair, min_size=0, seed=7)
        if begin:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            wire.load_state_dict(saved["wire"])
        for step in range(begin, 9):
            if step == at and not begin:
                saved = {
                    "model": {k: v.clone() for k, v in model.state_dict().items()},
                    "optimizer": torch.utils._pytree.tree_map(
                        lambda t: t.clone() if isinstance(t, Tensor) else t, optimizer.state_dict()
                    ),
                    "wire": wire.state_dict(),
                }
            wire.batch(SAMPLES)
            optimizer.zero_grad()
            loss_of(model, batch(step, dist.get_rank())).backward()
            optimizer.step()
        ends.append(flat(model))
        wire.detach()
    return ends[0], ends[1], saved["wire"]


def resized(name: str, states: list[dict[str, Any]]) -> tuple[bool, float, float, bool]:
    """Go on from all states: are ranks equal, how far from the mean model, how far they go, are they equal again."""
    model = net()
    optimizer = optimizer_of(name, model.parameters())
    with tw.attach(model, optimizer, METHODS[name], min_size=0, seed=7) as wire:
        wire.load_state_dict(states)
        start, mean = flat(model), flat(net())
        if METHODS[name].exchange.served:
            mean = start  # that of the servers
        elif METHODS[name].sync.of.models:
            held = [next(iter(state.values()))["tensors"] for state in states]
            parts = [torch.stack([one[f"model|0|{key}"] for one in held]) for key, _ in model.named_parameters()]
            mean = torch.cat([part.mean(0) for part in parts])
        for step in range(5, 8):
            wire.batch(SAMPLES)
            optimizer.zero_grad()
            loss_of(model, batch(step, dist.get_rank())).backward()
            optimizer.step()
        end = flat(model)
    same, off, gone = equal_everywhere(start), float((start - mean).abs().max()), float((end - start).norm())
    return same, off, gone, equal_everywhere(end)


def again(names: list[str]) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, tuple[bool, float, float, bool]]]:
    """Two of three ranks train and resume; then all three go on from what the two have saved."""
    pair = dist.new_group([0, 1])
    found = {name: resumed(name, 5, pair) for name in names} if dist.get_rank() < 2 else {}
    everybody: list[Any] = [None] * 3
    dist.all_gather_object(everybody, {name: saved for name, (_, _, saved) in found.items()})
    more = {name: resized(name, [saved[name] for saved in everybody[:2]]) for name in names}
    return {name: ends[:2] for name, ends in found.items()}, more


def test_what_is_under_way_resumes_bit_for_bit_in_the_middle_of_a_round_and_on_more_ranks() -> None:
    """After 5 steps: rounds of four steps are under way, those of two are half through."""
    for found, more in on_ranks(again, 3, RESUMED):
        for name, (through, resumed_) in found.items():
            assert torch.equal(through, resumed_), name
        for name, (same, off, gone, together) in more.items():
            assert same, name
            assert off < 1e-6, name
            assert gone > 0.01, name
            if METHODS[name].sync.every == 2 and name not in SUMMED and not METHODS[name].exchange.served:
                assert together, name  # after an outer step: who joined has the anchor and its momentum


def served(steps: int) -> tuple[Tensor, dict[str, float]]:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.05)
    with tw.attach(model, optimizer, tw.Method(Server(rule=Asgd()), tw.Sync(staleness=None)), min_size=0) as wire:
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, batch(step, dist.get_rank())).backward()
            optimizer.step()
        figures = wire.stats()
    return flat(model), figures


def test_a_server_without_rounds_runs_in_real_processes_too() -> None:
    ended = on_ranks(served, 3, 20)
    assert all(bool(model.isfinite().all()) for model, _ in ended)
    assert ended[0][1]["staleness_max"] >= 1
    assert float((ended[0][0] - flat(net())).norm()) > 0.1


@pytest.mark.parametrize("workers", [2, 4])
def test_a_plain_sum_is_the_mean_on_the_clock(workers: int) -> None:
    problem = tw.sim.Problem(net, lambda model, rank, step: loss_of(model, batch(step, rank)), sgd)
    done = tw.simulate(tw.Method(AllReduce()), problem, workers, steps=3)
    assert all(torch.equal(flat(done.models[0]), flat(model)) for model in done.models)
