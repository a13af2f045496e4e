"""Pseudo-gradients through a server, and elastic averaging: on the clock, beside the same sums done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from books import answered, make_book
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire import Channel
from thinwire.compressors import Qsgd, TopK
from thinwire.core.types import Key
from thinwire.exchange import AllReduce, Server
from thinwire.memory import ErrorFeedback
from thinwire.server import Asgd, Backup, DcAsgd, Easgd, Push, R2sp, Rule, Ssp, Work
from thinwire.sim import Constant, Network, Problem, Simulation, simulate
from thinwire.sync import AnyOptimizer, Carried, Delta, Growing, OuterStep, Param, Sgd, SlowMomentum

D, EVERY = 6, 3
TARGETS = torch.randn(4, D, generator=torch.Generator().manual_seed(0))
FAST = Network("100gbit", "0ms")


def grad(x: Tensor, rank: int, step: int) -> Tensor:
    return x - TARGETS[rank] - 0.1 * step


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    return (model.x - TARGETS[rank] - 0.1 * step).square().sum() / 2


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.1)


def run(
    method: tw.Method, workers: int, steps: int = 12, optimizer: Callable[..., Optimizer] = sgd, **more: Any
) -> Simulation:
    problem = Problem(partial(Point, D), loss, optimizer, seconds=0.1)
    return simulate(method, problem, workers, **{"steps": steps, "network": FAST, "min_size": 0, **more})


def end(done: Simulation, rank: int = 0) -> Tensor:
    return torch.cat([p.detach().flatten() for p in done.models[rank].parameters()])


def served(rule: Rule, outer: OuterStep, staleness: int | None = None) -> tw.Method:
    return tw.Method(Server(rule=rule, shards=1), tw.Sync(Delta(outer), every=EVERY, staleness=staleness))


OUTER = [Sgd(1.0, 0.0), Sgd(), AnyOptimizer.of("AdamW", lr=0.05), SlowMomentum(0.8, 0.5)]


@pytest.mark.parametrize("outer", OUTER, ids=lambda outer: outer.id)
def test_one_worker_is_the_outer_loop(outer: OuterStep) -> None:
    in_step = end(run(tw.Method(AllReduce(), tw.Sync(Delta(outer), every=EVERY)), 1))
    for rule in (Asgd(aware=True), R2sp(profile=1), Ssp("snapshot")):
        assert torch.equal(end(run(served(rule, outer, staleness=0 if rule.bounded else None), 1)), in_step), rule


@pytest.mark.parametrize("outer", OUTER[1::2], ids=lambda outer: outer.id)
def test_a_server_that_waits_for_all_is_the_outer_loop(outer: OuterStep) -> None:
    """Whoever is slow; momentum lies with the server."""
    in_step = end(run(tw.Method(AllReduce(), tw.Sync(Delta(outer), every=EVERY)), 4))
    waits = [served(Backup(0), outer), served(Ssp("snapshot"), outer, staleness=0)]
    ends = [end(run(one, 4, stragglers=Constant({2: 3.0}))) for one in waits]
    assert torch.equal(*ends)
    torch.testing.assert_close(ends[0], in_step, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("aware", [False, True])
def test_ways_are_used_as_they_arrive(aware: bool) -> None:
    """Three workers of different pace, by hand: who pushes when, and an outer step with momentum each time."""
    pace, outer = (1.0, 1.31, 2.47), Sgd(0.5, 0.6)
    c, v = torch.zeros(D), torch.zeros(D)
    x, tag, steps = [torch.zeros(D)] * 3, [0] * 3, [0] * 3
    order = sorted((EVERY * (turn + 1) * pace[rank], rank) for turn in range(4) for rank in range(3))
    for version, (_, rank) in enumerate(order):
        anchor = x[rank]
        for _ in range(EVERY):
            x[rank] = x[rank] - 0.1 * grad(x[rank], rank, steps[rank])
            steps[rank] += 1
        d = (anchor - x[rank]) / (max(1, version - tag[rank]) if aware else 1)
        v = outer.momentum * v + d
        c = c - outer.lr * (d + outer.momentum * v)
        x[rank], tag[rank] = c, version + 1
    done = run(served(Asgd(aware), outer), 3, stragglers=Constant({1: pace[1], 2: pace[2]}))
    torch.testing.assert_close(end(done), c, rtol=1e-5, atol=1e-6)
    ends = {one.rank: one.seconds for one in done.moments}
    assert [ends[rank] for rank in range(3)] == pytest.approx([1.2 * one for one in pace], rel=1e-3)  # nobody waits
    assert done.stats[0]["used"] == 12


def test_ways_are_bounded_and_spared_as_gradients_are() -> None:
    slow = Constant({1: 10.0})
    done = run(served(Ssp(), Sgd(0.3, 0.0), staleness=1), 3, stragglers=slow)
    late = [one.seconds for one in done.moments if one.rank == 1]
    leads = [
        one.step // EVERY - sum(t <= one.seconds - 0.1 + 1e-6 for t in late) // EVERY
        for one in done.moments
        if one.rank != 1
    ]
    assert max(leads) == 1  # ways, and not steps
    spared = run(served(Backup(1), Sgd(0.3, 0.0)), 3, stragglers=slow)
    assert max(one.seconds for one in spared.moments if one.rank != 1) == pytest.approx(1.2, rel=0.01)
    assert spared.stats[0]["dropped"] > 0
    cached = run(served(Ssp(cache=True), Sgd(1.0, 0.0), staleness=2), 1)
    torch.testing.assert_close(end(cached), end(run(tw.Method(AllReduce()), 1)))  # no answer: its own model goes on


def test_what_was_sent_and_what_is_held_back_are_the_ways() -> None:
    """Qsparse-local-SGD without rounds. With constant gradients a way is eta H g_i wherever it begins."""
    method = tw.methods.async_diloco(EVERY, 1 / 3, compressor=TopK(ratio=2 / D), feedback=True)
    problem = Problem(partial(Point, D), lambda model, rank, step: (model.x * TARGETS[rank]).sum(), sgd)  # type: ignore[operator]
    done = simulate(method, problem, 3, steps=12, stragglers=Constant({1: 1.7, 2: 2.9}), min_size=0)
    model = torch.zeros(D)
    for rank in range(3):
        m, sent = torch.zeros(D), torch.zeros(D)
        for _ in range(12 // EVERY):
            v = m + EVERY * 0.1 * TARGETS[rank]
            q = torch.where(v.abs() >= v.abs().topk(2).values[-1], v, 0.0)
            m = v - q
            sent += q
        torch.testing.assert_close(sent + m, 12 * 0.1 * TARGETS[rank])
        model -= sent / 3
    assert model.abs().min() > 0
    for rank in range(3):
        torch.testing.assert_close(end(done, rank), model, rtol=1e-5, atol=1e-6)


def elastic(alpha: float, every: int, turns: list[int], mu: float = 0.0) -> Tensor:
    """The paper's algorithms by hand, for workers that take a step in this order; returns the centre.

    With momentum y is what the optimizer keeps: algorithm 2's x + mu v, with v = -0.1 b.
    """
    c, y, b, steps = torch.zeros(D), torch.zeros(4, D), torch.zeros(4, D), [0] * 4
    for rank in turns:
        g = grad(y[rank], rank, steps[rank])
        if steps[rank] and steps[rank] % every == 0:
            d = alpha * (y[rank] - c)
            y[rank] -= d
            c = c + d
        b[rank] = mu * b[rank] + g
        y[rank] -= 0.1 * (g + mu * b[rank])
        steps[rank] += 1
    return c


PACE = (1.0, 1.31, 2.47, 3.03)


def by_pace(steps: int) -> list[int]:
    """Who ends a step when, which is when it would push."""
    return [rank for _, rank in sorted((PACE[rank] * (step + 1), rank) for step in range(steps) for rank in range(4))]


@pytest.mark.parametrize(("alpha", "every", "mu"), [(0.3, 1, 0.0), (0.3, 4, 0.0), (0.3, 4, 0.9), (0.0, 2, 0.0)])
def test_the_centre_is_that_of_the_paper(alpha: float, every: int, mu: float) -> None:
    method = (tw.methods.eamsgd_async if mu else tw.methods.easgd_async)(alpha, every)
    optimizer = partial(SGD, lr=0.1, momentum=mu, nesterov=mu > 0)
    done = run(method, 4, 10, optimizer, stragglers=Constant(dict(enumerate(PACE))))
    c = elastic(alpha, every, by_pace(10), mu)
    for rank in range(4):
        torch.testing.assert_close(end(done, rank), c, rtol=1e-5, atol=1e-6)
    assert done.stats[0]["pushes"] == 4 * (9 // every)
    assert bool(c.any()) == (alpha > 0)


@pytest.mark.parametrize("differences", [False, True])
def test_a_spring_moves_both_ends_and_never_their_sum(differences: bool) -> None:
    """In float64, with noise of the size of what is sent where the wire loses something."""
    rule, some = Easgd(0.3, differences=differences), torch.Generator().manual_seed(0)
    book = make_book(rule, torch.zeros(D, dtype=torch.float64), 4, 0.1, None)
    states = [rule.worker(book.x, 4) for _ in range(4)]
    x = torch.randn(4, D, generator=some, dtype=torch.float64)
    total = x.sum(0) + book.x
    for turn in range(40):
        rank = turn % 4
        v = rule.push(Work(x[rank], x[rank], torch.tensor(0.1), Key(), {}), states[rank])
        v = v + (0.2 * v.norm() * torch.randn(D, generator=some, dtype=torch.float64) if differences else 0.0)
        rule.sent(v, states[rank])
        book.arrived(Push(rank, 0, turn // 4, 0.0, 0.0, (0.1,), v))
        x[rank] = rule.pull(x[rank], answered(book.answers.pop(rank)), states[rank])
        torch.testing.assert_close(x.sum(0) + book.x, total, rtol=0, atol=1e-14)
        assert torch.equal(states[rank]["centre"], book.x)
    spread = (x - book.x).norm()
    assert spread < (0.5 if differences else 1e-2) * total.norm()


@pytest.mark.parametrize("eta", [0.1, 1.0, 1.9])
def test_the_edge_of_stability_in_turn(eta: float) -> None:
    """On x^2/2 with workers in turn and every=1: stable for alpha <= (4 - 2 eta) / (4 - eta)."""
    n, edge = 3, (4 - 2 * eta) / (4 - eta)
    radius = []
    for alpha in (0.99 * edge, 1.01 * edge):
        whole = torch.eye(n + 1, dtype=torch.float64)  # of a round: the workers, and the centre behind them
        for i in range(n):
            turn = torch.eye(n + 1, dtype=torch.float64)
            turn[i, i], turn[i, n], turn[n, i], turn[n, n] = 1 - eta - alpha, alpha, alpha, 1 - alpha
            whole = turn @ whole
        radius.append(float(torch.linalg.eigvals(whole).abs().max()))
    assert radius[0] < 1 < radius[1]


def test_what_a_push_loses_is_part_of_the_next() -> None:
    """A centre that hears of the workers in 4 bits stays by the one that hears all."""
    ends = [end(run(tw.methods.easgd_async(0.2, 2, compressor=one), 4, 40)) for one in ("identity", Qsgd(bits=4))]
    assert (ends[1] - ends[0]).norm() < 0.03 * ends[0].norm()
    assert not torch.equal(*ends)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (served(DcAsgd(), Sgd()), r"not for pseudo-gradients; write Server\(rule=thinwire.server.Asgd"),
        (tw.Method(Server(rule=Easgd()), tw.Sync(Delta(), staleness=None)), "not for pseudo-gradients"),
        (served(Asgd(), Sgd(), staleness=0), r"write Sync\(staleness=None\)"),
        (served(Ssp(), Sgd()), r"write Sync\(staleness=4\)"),
        *[
            (tw.Method(Server(rule=Asgd()), tw.Sync(of, every=4, staleness=None)), r"write Sync\(of=Delta\(outer=")
            for of in (
                Delta(delay=1),
                Delta(fragments=2),
                Delta(merge=Carried()),
                Delta(period=Growing()),
                Delta(buffers="mean"),
                Delta(moments="mean"),
                Delta(on_cpu=True),
            )
        ],
        (tw.Method(Server(rule=Easgd()), tw.Sync(staleness=None)), r"push models.*write Sync\(of=Param"),
        (tw.Method(Server(rule=Easgd()), tw.Sync(Param(), every=2)), r"write Sync\(staleness=None\)"),
    ],
    ids=str,
)
def test_what_a_server_does_not_do_is_refused(method: tw.Method, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        run(method, 2)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="write 0 <= alpha <= 1"):
        Easgd(1.5)
    with pytest.raises(ValueError, match=r"write Server\(Channel\("):
        Server(Channel(TopK(ratio=0.5), ErrorFeedback()), Easgd())
    with pytest.raises(ValueError, match="without down"):
        Server(rule=Easgd(), down=Channel(Qsgd(bits=8)))
