"""How long steps take with a server, as theory has it, and how old gradients may become."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import pytest
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw
from thinwire.exchange import Server
from thinwire.server import Backup, R2sp, Rule, Ssp
from thinwire.sim import Exponential, Network, Problem, Simulation, Stragglers, simulate

Draw = Callable[[int, int], float]  # seconds of a worker's step, of (rank, step)


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    return model.x.square().sum()


def run(
    rule: Rule,
    n: int,
    steps: int,
    stragglers: Stragglers | None = None,
    staleness: int | None = None,
    d: int = 2,
    rate: str = "100gbit",
) -> Simulation:
    problem = Problem(partial(Point, d), loss, lambda p: SGD(p, lr=0.01), seconds=1.0)
    method = tw.Method(Server(rule=rule, shards=1), tw.Sync(staleness=staleness))
    network = Network(rate, "0ms")
    return simulate(method, problem, n, steps=steps, network=network, stragglers=stragglers, min_size=0, seed=1)


def answers(n: int, b: int, steps: int, draw: Draw) -> tuple[list[float], int]:
    """When workers are answered until one has taken so many steps, and how many steps the server has taken by then.

    The first n - b gradients of a step are used, and those that come later are dropped.
    """
    queue = [(draw(rank, 0), rank) for rank in range(n)]
    heapq.heapify(queue)
    taken, tags, held, version = [0] * n, [0] * n, [], 0
    found: list[float] = []
    while max(taken) < steps:
        now, rank = heapq.heappop(queue)
        go = [rank]
        if tags[rank] == version:
            held.append(rank)
            go = []
            if len(held) == n - b:
                go, held, version = held, [], version + 1
        for one in go:
            taken[one] += 1
            tags[one] = version
            found.append(now)
            heapq.heappush(queue, (now + draw(one, taken[one]), one))
    return found, version


@cache
def expected(useful: int, late: int, n: int, b: int) -> float:
    """The mean time that a step still takes where computing takes an exponential time of mean 1.

    `useful` gradients have come, `late` workers still compute one that will be dropped; all n - useful are equally
    likely to be next. Every step begins with b that are late.
    """
    if useful == n - b:
        return 0.0
    computing = n - useful
    on_time = (computing - late) * expected(useful + 1, late, n, b)
    too_late = late * expected(useful, late - 1, n, b) if late else 0.0
    return (1 + on_time + too_late) / computing


@pytest.mark.parametrize("b", [0, 2])
def test_steps_on_the_clock_take_what_the_draws_say(b: int) -> None:
    n, steps, luck = 5, 15, Exponential()
    done = run(Backup(b), n, steps, luck)
    told, _ = answers(n, b, steps, lambda rank, step: luck.factor(rank, step, 1))
    assert [one.seconds for one in done.moments][: len(told)] == pytest.approx(told, abs=1e-5)


@pytest.mark.parametrize(("n", "b"), [(8, 0), (8, 2), (25, 1)])
def test_and_that_is_on_average_what_theory_says(n: int, b: int) -> None:
    """Without spares the mean of the largest of n, 1 + 1/2 + .. + 1/n.

    With b of them it is a little more than that of the (n - b)-th of n which begin together, 1/n + .. + 1/(b + 1),
    since whoever was late begins late.
    """
    draw = random.Random(5)
    times, updates = answers(n, b, 50_000 // n, lambda rank, step: draw.expovariate(1.0))
    mean, together = expected(0, b, n, b), sum(1 / i for i in range(b + 1, n + 1))
    assert times[-1] / updates == pytest.approx(mean, rel=0.02)
    assert mean == pytest.approx(together) if b == 0 else together < mean < together + 1 / b


def test_96_of_100() -> None:
    """The paper's choice, in units of the mean time of a worker."""
    assert sum(1 / i for i in range(5, 101)) == pytest.approx(3.104, abs=1e-3)
    assert expected(0, 0, 100, 0) == pytest.approx(5.187, abs=1e-3)
    assert 3.104 < expected(0, 4, 100, 4) < 3.7


@pytest.mark.parametrize("s", [0, 1, 3])
def test_under_a_bound_no_gradient_is_older_than_what_the_others_may_do_meanwhile(s: int) -> None:
    """While a worker computes, each of the others may go from s behind it to s ahead: 2 s + 1 steps."""
    n = 4
    done = run(Ssp(), n, 25, Exponential(), s)
    assert 0 < done.stats[0]["staleness_max"] <= (n - 1) * (2 * s + 1)
    ends = {rank: [one.seconds for one in done.moments if one.rank == rank] for rank in range(n)}
    for now in {one.seconds + 1e-5 for one in done.moments}:  # the answers of one moment arrive a little apart
        steps = [sum(t <= now for t in ends[rank]) for rank in range(n)]
        assert max(steps) - min(steps) <= s


def test_in_turn_there_is_one_transfer_at_a_time() -> None:
    """4,000 bytes take 32 ms on this link; nobody is answered less than that after the one before."""
    done = run(R2sp(profile=0, spread=1e6), 4, 6, d=1000, rate="1mbit")
    away = [one.seconds for one in done.moments if one.rank != 0]  # rank 0 asks itself
    assert min(after - before for before, after in pairwise(away)) >= 0.032
