"""Schedules on the clock: what each one computes, beside the same sums done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import pytest
import torch
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.exchange import AllGather, AllReduce, Server
from thinwire.server import Asgd, Backup, Softsync, Ssp
from thinwire.sim import Constant, Network, Problem, Simulation, simulate
from thinwire.sync import Delta, Grad, Param, Sgd, Signal

D = 6
WORKERS = 4
TARGETS = torch.randn(WORKERS, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    return (model.x - TARGETS[rank] - 0.1 * step).square().sum() / 2


def grad(x: Tensor, rank: int, step: int) -> Tensor:
    return x - TARGETS[rank] - 0.1 * step


def sgd(lr: float, momentum: float = 0.0) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    return lambda parameters: SGD(parameters, lr=lr, momentum=momentum)


def run(
    method: tw.Method, workers: int = WORKERS, steps: int = 12, momentum: float = 0.0, **more: object
) -> Simulation:
    problem = Problem(partial(Point, D), loss, sgd(0.1, momentum), seconds=0.1)
    settings: dict[str, object] = {"network": Network("1gbit", "1ms"), "min_size": 0, **more}
    return simulate(method, problem, workers, steps=steps, **settings)  # type: ignore[arg-type]


def points(done: Simulation) -> Tensor:
    return torch.stack([torch.cat([p.detach() for p in model.parameters()]) for model in done.models])


def method(exchange: tw.exchange.Exchange, of: Signal | None = None, **sync: int | None) -> tw.Method:
    return tw.Method(exchange, tw.Sync(of or Grad(), **sync))  # type: ignore[arg-type]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_results_come_exactly_so_many_steps_late(staleness: int) -> None:
    """w_t+1 = w_t - lr mean g(w_t-s); zeros before that."""
    path = [torch.zeros(D)]
    for t in range(12):
        if t >= staleness:
            old = t - staleness
            mean = torch.stack([grad(path[old], rank, old) for rank in range(WORKERS)]).mean(0)
            path.append(path[-1] - 0.1 * mean)
        else:
            path.append(path[-1])
    found = points(run(method(AllReduce(), staleness=staleness)))
    for x in found:
        torch.testing.assert_close(x, path[-1], rtol=1e-5, atol=1e-6)


def test_every_step_draws_its_own_noise() -> None:
    """Where the gradient is the same in every step, steps differ only by how it was rounded."""
    problem = Problem(partial(Point, D), lambda model, rank, step: (model.x * TARGETS[rank]).sum(), sgd(1.0))  # type: ignore[operator]
    path = [points(simulate(tw.methods.qsgd(bits=2), problem, 1, steps=t, min_size=0))[0] for t in range(1, 6)]
    moves = [path[0], *(b - a for a, b in pairwise(path))]
    assert any(not torch.allclose(move, moves[0], atol=1e-5) for move in moves)


def test_a_late_step_costs_the_longer_of_computing_and_sending() -> None:
    """0.1 s of computing; a ring of 2 on a slow link takes 0.2 s: 0.3 s in step, 0.2 s one step late."""
    big = Problem(lambda: nn.Linear(1000, 250, bias=False), lambda m, r, s: m(torch.ones(1, 1000)).sum(), seconds=0.1)
    link = Network(rate=8 * 1_000_000 / 0.2, latency=0.0)  # a megabyte in 0.2 s: twice half of one at each end
    took = {
        s: simulate(method(AllReduce(), staleness=s), big, 2, steps=20, network=link, min_size=0).seconds
        for s in (0, 1)
    }
    assert took[0] == pytest.approx(20 * 0.3, rel=1e-3)
    assert took[1] == pytest.approx(20 * 0.2, rel=0.06)  # the first step has nothing to wait for


@pytest.mark.parametrize(("outer_lr", "mu"), [(1.0, 0.0), (0.7, 0.9)])
def test_the_outer_step_is_nesterovs(outer_lr: float, mu: float) -> None:
    anchor, v, every = torch.zeros(D), torch.zeros(D), 3
    for start in range(0, 12, every):
        ends = []
        for rank in range(WORKERS):
            x = anchor.clone()
            for step in range(start, start + every):
                x = x - 0.1 * grad(x, rank, step)
            ends.append(anchor - x)
        d = torch.stack(ends).mean(0)
        v = mu * v + d
        anchor = anchor - outer_lr * (d + mu * v)
    found = points(run(method(AllReduce(), Delta(Sgd(outer_lr, mu)), every=every)))
    for x in found:
        torch.testing.assert_close(x, anchor, rtol=1e-5, atol=1e-6)


def test_an_outer_step_of_one_without_momentum_is_local_sgd() -> None:
    outer = points(run(method(AllReduce(), Delta(Sgd(1.0, 0.0)), every=4), momentum=0.9))
    local = points(run(method(AllReduce(), Param(), every=4), momentum=0.9))
    torch.testing.assert_close(outer, local, rtol=1e-5, atol=1e-6)


def test_one_worker_with_a_server_is_sequential_sgd() -> None:
    x = torch.zeros(D)
    for step in range(12):
        x = x - 0.1 * grad(x, 0, step)
    done = run(method(Server(rule=Asgd()), staleness=None), workers=1)
    torch.testing.assert_close(points(done)[0], x, rtol=1e-5, atol=1e-6)
    assert done.stats[0]["staleness_mean"] == 0


def test_workers_in_turn_are_as_stale_as_there_are_others() -> None:
    """All take 0.1 s, so that each step meets one of every other worker since its own last."""
    done = run(method(Server(rule=Asgd()), staleness=None), steps=40)
    assert done.stats[0]["staleness_max"] == WORKERS - 1
    assert done.stats[0]["staleness_mean"] == pytest.approx(WORKERS - 1, rel=0.05)
    assert done.seconds < 40 * 0.11  # nobody waits for anybody


def test_a_slow_worker_does_not_hold_up_the_others() -> None:
    asynchronous = method(Server(rule=Asgd()), staleness=None)
    slow = Constant({3: 10.0})
    ends = {one.rank: one.seconds for one in run(asynchronous, steps=20, stragglers=slow).moments}
    assert max(ends[rank] for rank in range(3)) < 20 * 0.11
    assert ends[3] == pytest.approx(20.0, rel=0.05)
    in_step = run(method(AllReduce()), steps=20, stragglers=slow)
    assert in_step.seconds == pytest.approx(20.0, rel=0.05)  # here everybody is as slow as the slowest


@pytest.mark.parametrize("slow", [0, 1], ids=["answers", "asks"])
def test_with_ad_psgd_neither(slow: int) -> None:
    """Whether it answers or asks, the others take their steps as if it were not slow; it takes part all the same."""
    done = run(tw.methods.ad_psgd(), steps=20, stragglers=Constant({slow: 10.0}))
    ends = {one.rank: one.seconds for one in done.moments}
    assert max(ends[rank] for rank in range(WORKERS) if rank != slow) < 20 * 0.11
    assert ends[slow] == pytest.approx(20.0, rel=0.05)
    assert done.stats[slow]["exchanges"] >= 20


def test_a_server_in_step_is_the_mean() -> None:
    torch.testing.assert_close(points(run(method(Server()))), points(run(method(AllReduce()))), rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (
        run(tw.methods.ad_psgd(compressor="qsgd:bits=4"), stragglers=tw.sim.LogNormal(0.5), seed=3) for _ in range(2)
    )
    assert torch.equal(points(first), points(second))
    assert first.moments == second.moments
    assert (
        first.moments
        != run(tw.methods.ad_psgd(compressor="qsgd:bits=4"), stragglers=tw.sim.LogNormal(0.5), seed=4).moments
    )


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (method(AllReduce(), staleness=None), "all-reduce has rounds that ranks take together"),
        (method(AllReduce(), Param(), staleness=1), "only gradients that all ranks exchange may come late"),
        (method(Server(), staleness=None), r"write Server\(rule=thinwire.server.Asgd\(\)\)"),
        (method(Server(rule=Asgd())), r"write Sync\(staleness=None\)"),
        (method(Server(rule=Ssp()), staleness=None), r"write Sync\(staleness=4\)"),
        (method(Server(rule=Asgd()), Param(), staleness=None), "is pushed the gradient of every step"),
        (method(Server(rule=Backup(4)), staleness=None), "waits for nobody"),
        (method(Server(rule=Softsync(5)), staleness=None), "at most one split each"),
        (method(tw.methods.d_psgd().exchange, Delta(delay=1), every=2), "no delay"),
        (method(AllReduce(), Delta(fragments=3), every=4), "write every=3"),
        (method(AllReduce(), Delta(delay=5), every=4), "write delay=4 or less"),
        (
            method(AllGather(tw.Channel(tw.compressors.Qsgd(bits=4))), Param(), every=4),
            r"write Sync\(of=thinwire.sync.Delta",
        ),
    ],
)
def test_what_has_no_schedule_is_refused(method: tw.Method, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        run(method)
