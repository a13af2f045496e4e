"""The clock and real processes: the same coroutines, the same bytes and the same bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import flat, net
from nets import loss as loss_of
from ranks import on_ranks
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.exchange import AllGather, AllReduce, Server
from thinwire.memory import ErrorFeedback
from thinwire.server import Asgd
from thinwire.sync import Delta

STEPS = 6
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
}


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x[:, :4].sin()


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9)


def in_processes(names: list[str], steps: int) -> dict[str, tuple[Tensor, float]]:
    found = {}
    for name in names:
        model = net()
        optimizer = sgd(model.parameters())
        wire = tw.attach(model, optimizer, METHODS[name], min_size=0, seed=7)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, batch(step, dist.get_rank())).backward()
            optimizer.step()
        wire.detach()  # ADMM ends its round here
        found[name] = (flat(model), wire.stats()["bytes_sent"])
    return found


def simulated(name: str, steps: int) -> list[tuple[Tensor, float]]:
    problem = tw.sim.Problem(net, lambda model, rank, step: loss_of(model, batch(step, rank)), sgd)
    done = tw.simulate(METHODS[name], problem, 4, steps=steps, seed=7, min_size=0)
    return [(flat(model), stats["bytes_sent"]) for model, stats in zip(done.models, done.stats, strict=True)]


def test_models_and_bytes_are_those_of_real_processes() -> None:
    found: list[dict[str, tuple[Tensor, float]]] = on_ranks(in_processes, 4, list(METHODS), STEPS)
    for name in METHODS:
        for rank, (model, sent) in enumerate(simulated(name, STEPS)):
            there, bytes_there = found[rank][name]
            assert torch.equal(model, there), (name, rank)
            assert sent <= bytes_there  # real ones ask for sizes first, where they are not known
            if name in ("qsgd", "ef-signsgd", "late", "outer"):
                assert sent == bytes_there, name


def resumed(name: str, at: int) -> tuple[Tensor, Tensor]:
    """Train through, and the same again from a checkpoint in the middle."""
    ends = []
    saved: dict[str, Any] = {}
    for begin in (0, at):
        model = net()
        optimizer = sgd(model.parameters())
        wire = tw.attach(model, optimizer, METHODS[name], min_size=0, seed=7)
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
            optimizer.zero_grad()
            loss_of(model, batch(step, dist.get_rank())).backward()
            optimizer.step()
        ends.append(flat(model))
        wire.detach()
    return ends[0], ends[1]


def both(names: list[str]) -> list[tuple[Tensor, Tensor]]:
    return [resumed(name, 5) for name in names]


def test_late_results_and_anchors_resume_bit_for_bit_in_the_middle_of_a_round() -> None:
    for pairs in on_ranks(both, 2, ["late", "outer"]):
        for through, again in pairs:
            assert torch.equal(through, again)


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
