"""Growing batches on the clock: how many rounds a budget takes, and the Catalyst-like form by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw
from thinwire.exchange import AllReduce, Server
from thinwire.server import Asgd
from thinwire.sim import Network, Problem, Simulation, simulate
from thinwire.sync import GrowingBatches, Param

D, N, LR = 5, 2, 0.1
TARGETS = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
FAST = Network("100gbit", "0ms")


def grad(x: Tensor, step: int) -> Tensor:
    """The mean over ranks."""
    return x - TARGETS.mean(0) - 0.1 * step


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    return (model.x - TARGETS[rank] - 0.1 * step).square().sum() / 2


def run(method: tw.Method, batch: int | None, **more: Any) -> Simulation:
    problem = Problem(partial(Point, D), loss, partial(SGD, lr=LR), seconds=0.1, batch=batch)
    return simulate(method, problem, N, **{"steps": 200, "network": FAST, "min_size": 0, **more})


def end(done: Simulation) -> Tensor:
    first, second = (model.get_parameter("x").detach() for model in done.models)
    assert torch.equal(first, second)
    return first


def sizes(rho: float, first: int, total: int) -> list[int]:
    """floor(rho^(k-1) B_1) while they fit."""
    found: list[int] = []
    while sum(found) + (size := math.floor(rho ** len(found) * first)) <= total:
        found.append(size)
    return found


@pytest.mark.parametrize(("rho", "first", "total"), [(1.1, 8, 3000), (1.5, 10, 10_000), (2.0, 1, 1023), (3.0, 7, 7)])
def test_a_budget_takes_a_logarithm_of_rounds(rho: float, first: int, total: int) -> None:
    done, expected = run(tw.methods.cr_psgd(rho, total), first), sizes(rho, first, total)
    rounds = 1 + max(one.step for one in done.moments)
    assert rounds == len(expected)
    assert abs(rounds - math.floor(math.log(1 + total * (rho - 1) / first, rho))) <= 1
    for rank in range(N):
        assert sum(one.rank == rank for one in done.moments) == rounds  # all end in the same step
        assert done.stats[rank]["samples"] == sum(expected) <= total
    assert done.seconds == pytest.approx(0.1 * sum(expected) / first, rel=1e-3)  # larger batches take longer
    plain = run(tw.Method(AllReduce()), None, steps=rounds)
    assert torch.equal(end(done), end(plain))  # without theta nothing is added


def test_batches_that_do_not_grow_are_synchronous_sgd() -> None:
    done = run(tw.methods.cr_psgd(1.0, 99), 10)
    assert len(done.moments) == N * 9
    assert torch.equal(end(done), end(run(tw.methods.sgd(), None, steps=9)))
    assert len(run(tw.methods.cr_psgd(), 10, steps=9).moments) == N * 9  # without a budget there is no end


def test_the_catalyst_form_pulls_every_run_to_its_start() -> None:
    """floor(sqrt(n T)) runs of floor(sqrt(T / n)) samples each, in which batches grow anew."""
    rho, first, total, theta = 1.6, 2, 90, 0.7
    runs, budget = math.isqrt(N * total), math.isqrt(total // N)
    each = sizes(rho, first, budget)
    assert (runs, each) == (13, [2, 3])
    x, step = torch.zeros(D), 0
    for _ in range(runs):
        y = x
        for _ in each:
            x = x - LR * (grad(x, step) + theta * (x - y))
            step += 1
    done = run(tw.methods.cr_psgd(rho, total, theta), first)
    assert len(done.moments) == N * step
    assert done.stats[0]["samples"] == runs * sum(each) <= total
    assert done.stats[0]["runs_ended"] == runs
    torch.testing.assert_close(end(done), x, rtol=1e-5, atol=1e-6)
    assert not torch.equal(end(done), end(run(tw.methods.sgd(), None, steps=step)))


def test_who_never_asks_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run(tw.methods.cr_psgd(), None, steps=3)
    assert capsys.readouterr().err.count("while n := wire.batch(64):") == 1  # by one rank, once


def test_what_does_not_grow_is_refused() -> None:
    batches = GrowingBatches(1.1)
    for method in (
        tw.Method(AllReduce(), tw.Sync(of=Param(), batches=batches)),
        tw.Method(AllReduce(), tw.Sync(staleness=1, batches=batches)),
        tw.Method(Server(rule=Asgd()), tw.Sync(staleness=None, batches=batches)),
    ):
        with pytest.raises(ValueError, match=r"exchanged in step.*write Method\(AllReduce\(\), Sync\(batches="):
            run(method, 10)
    for wrong, told in (
        ({"rho": 0.9}, r"write rho=1\.1"),
        ({"total": 0}, "how many samples"),
        ({"theta": -1.0}, "write theta=0"),
        ({"theta": 1.0}, "write total=100_000"),
    ):
        with pytest.raises(ValueError, match=told):
            GrowingBatches(**wrong)
    with pytest.raises(ValueError, match=r"write batch\(9\) or less"):
        run(tw.methods.cr_psgd(1.1, 9), 10)
