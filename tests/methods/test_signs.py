"""The sign family: votes, the counter-examples, and how error feedback escapes them. Section 6."""

from __future__ import annotations

import math

import pytest
import torch
from battery import vector
from torch import Tensor

from thinwire import Layout, Method, methods
from thinwire.lab.world import World

ODDS = {1: 0.309, 3: 0.227, 7: 0.137, 15: 0.058, 31: 0.0127}  # the sheet's, for a signal of half the noise


def binomial(p: float, n: int) -> float:
    """The probability that most of `n` ranks are wrong, each with probability `p`."""
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n // 2 + 1, n + 1))


def test_a_vote_is_the_sign_of_the_sum_of_signs() -> None:
    for n in (3, 4):
        xs = [vector(3000, seed=r) for r in range(n)]
        votes = sum((torch.where(x >= 0, 1, -1) for x in xs), torch.zeros(3000, dtype=torch.int64))
        out = World(methods.majority_vote().exchange, Layout.flat(3000), n).step(xs)
        assert torch.equal(out, torch.where(votes >= 0, 1.0, -1.0))
        mean = World(methods.signsgd().exchange, Layout.flat(3000), n).step(xs)
        assert torch.allclose(mean, votes / n, atol=1e-6)


@pytest.mark.parametrize("n", ODDS)
def test_votes_are_wrong_as_often_as_a_binomial_says(n: int) -> None:
    wrong = 0.5 * math.erfc(0.5 / math.sqrt(2))
    assert binomial(wrong, n) == pytest.approx(ODDS[n], rel=0.01)
    d = 20_000
    out = World(methods.majority_vote().exchange, Layout.flat(d), n).step([0.5 + vector(d, seed=r) for r in range(n)])
    share = (out < 0).float().mean().item()
    assert abs(share - binomial(wrong, n)) < 4 * math.sqrt(0.25 / d)


def test_signs_of_a_skewed_gradient_point_the_wrong_way() -> None:
    """Counter-example (i): 4 with probability 1/4 and -1 else, mean 1/4; the mean sign is -1/2."""
    d = 20_000
    draws = torch.rand(4, d, generator=torch.Generator().manual_seed(0))
    xs = list(torch.where(draws < 0.25, 4.0, -1.0))
    assert torch.stack(xs).mean() == pytest.approx(0.25, abs=0.05)
    assert World(methods.signsgd().exchange, Layout.flat(d)).step(xs).mean() == pytest.approx(-0.5, abs=0.02)
    ef = World(methods.ef_signsgd(block=1, exchange="all-gather").exchange, Layout.flat(d))
    assert ef.step(xs).mean() == pytest.approx(0.25, abs=0.05)  # magnitudes survive in blocks of one


EPSILON = 0.1


def value(x: Tensor) -> float:
    return float(EPSILON * (x[0] + x[1]).abs() + (x[0] - x[1]).abs())


def descend(m: Method, steps: int) -> Tensor:
    """Subgradient descent on `value` from (1, 1), with steps that shrink and residuals that follow them."""
    world, x, last = World(m.exchange, Layout.flat(2), n=1), torch.ones(2), 0.0
    for step in range(steps):
        lr = 0.2 / math.sqrt(step + 1)
        if last:
            world.rescale(last / lr)
        last = lr
        along, across = torch.where(torch.stack([x[0] + x[1], x[0] - x[1]]) >= 0, 1.0, -1.0)
        grad = EPSILON * along * torch.ones(2) + across * torch.tensor([1.0, -1.0])
        x = x - lr * world.step([grad])
    return x


def test_signs_never_leave_the_diagonal_and_feedback_does() -> None:
    """Counter-example (ii): every sign step is +-(1, -1), so x1 + x2 = 2 for ever."""
    for m in (methods.signsgd(), methods.majority_vote()):
        x = descend(m, steps=200)
        assert x.sum().item() == pytest.approx(2, abs=1e-4)
        assert value(x) >= 2 * EPSILON - 1e-4
    for m in (methods.ef_signsgd(), methods.ef_signsgd(exchange="all-gather")):
        assert value(descend(m, steps=800)) < 0.02
