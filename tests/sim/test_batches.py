"""Batches by speed under R2SP: slow workers take smaller ones, all take equally long, and gradients weigh as much."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw
from thinwire.exchange import Server
from thinwire.server import Asgd, R2sp, Rule
from thinwire.sim import Constant, Network, Problem, Simulation, simulate

N = 3
SLOW = Constant({1: 3.0})


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    """A gradient of 1 in an element of its own."""
    assert isinstance(model, Point)
    return model.x[rank]


def run(rule: Rule, batch: int | None, steps: int = 12) -> Simulation:
    problem = Problem(partial(Point, N), loss, lambda p: SGD(p, lr=1.0), seconds=0.1, batch=batch)
    method = tw.Method(Server(rule=rule), tw.Sync(staleness=None))
    return simulate(method, problem, N, steps=steps, network=Network("100gbit", "0ms"), stragglers=SLOW, min_size=0)


def seconds(done: Simulation, rank: int, step: int) -> float:
    """What a step took."""
    ends = {one.step: one.seconds for one in done.moments if one.rank == rank}
    return ends[step] - ends[step - 1]


def test_all_take_equally_long_and_weigh_as_much_as_they_have_samples() -> None:
    done = run(R2sp(profile=2), 70)
    shares = [9 / 7, 3 / 7, 9 / 7]  # speeds 1, 1/3, 1, scaled to a mean of 1
    for rank, share in enumerate(shares):
        assert seconds(done, rank, 11) == pytest.approx(0.1 * 9 / 7, rel=0.02)  # 0.3 s before
        weight = -done.models[0].get_parameter("x").tolist()[rank] / 12
        assert weight == pytest.approx((2 * 1.0 + 10 * share) / 12, rel=0.1)
    assert seconds(run(R2sp(profile=2), None), 0, 11) == pytest.approx(0.3, rel=0.02)


def test_who_says_nothing_weighs_one_and_other_rules_share_nothing() -> None:
    for rule, batch in ((R2sp(profile=2), None), (Asgd(), 70)):
        done = run(rule, batch)
        torch.testing.assert_close(done.models[0].get_parameter("x"), torch.full((N,), -12.0))
