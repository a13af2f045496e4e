"""Local momentum: what is encoded is a moving average."""

from __future__ import annotations

import pytest
import torch
from battery import vector

from thinwire import Channel, Layout, methods
from thinwire.compressors import Identity, Sign
from thinwire.exchange import AllGather
from thinwire.lab.world import World
from thinwire.memory import LocalMomentum


def test_the_average_is_sent() -> None:
    """m^t = (1 - beta) sum over tau of beta^(t - tau) x^tau."""
    world = World(AllGather(Channel(Identity(), LocalMomentum(beta=0.8))), Layout.flat(50))
    means = []
    for step in range(20):
        xs = [vector(50, seed=4 * step + r) for r in range(4)]
        means.append(torch.stack(xs).mean(0))
        out = world.step(xs)
        expected = sum((0.2 * 0.8 ** (step - t) * m for t, m in enumerate(means)), torch.zeros(50))
        assert torch.allclose(out, expected, atol=1e-5)


def test_signum_is_the_vote_on_the_averages() -> None:
    world = World(methods.signum(beta=0.5).exchange, Layout.flat(1300))
    averages = [torch.zeros(1300)] * 4
    for step in range(5):
        xs = [vector(1300, seed=4 * step + r) for r in range(4)]
        averages = [0.5 * m + 0.5 * x for m, x in zip(averages, xs, strict=True)]
        votes = sum((torch.where(m >= 0, 1.0, -1.0) for m in averages), torch.zeros(1300))
        assert torch.equal(world.step(xs), torch.where(votes >= 0, 1.0, -1.0))
        assert set(world.states[0]) == {"up.send.average"}


def test_what_is_not_finite_stays_out_of_the_average() -> None:
    """The block of a bad element decodes to NaN, and all of it keeps its average."""
    world = World(AllGather(Channel(Sign(), LocalMomentum(beta=0.5))), Layout.flat(3), n=1)
    world.step([torch.tensor([2.0, -2.0, 4.0])])
    for bad in (float("nan"), float("inf")):
        assert world.step([torch.tensor([1.0, bad, 1.0])]).isnan().all()
        assert world.states[0]["send.average"].tolist() == [1.0, -1.0, 2.0]


def test_beta_outside_its_range_is_refused() -> None:
    for beta in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"write LocalMomentum\(beta=0.9\)"):
            LocalMomentum(beta)
