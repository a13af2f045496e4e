"""Difference: both ends keep the same prediction, and only what it misses is sent."""

from __future__ import annotations

import pytest
import torch
from battery import vector

from thinwire import Channel, Layout, methods
from thinwire.compressors import ScaledSign
from thinwire.core.exchange import Exchange
from thinwire.exchange import AllGather, ScatterGather
from thinwire.lab.world import World
from thinwire.memory import Difference


@pytest.mark.parametrize("exchange", [methods.diana(block=32).exchange, methods.ef21().exchange], ids=str)
def test_the_receivers_shift_is_the_mean_of_the_senders(exchange: Exchange) -> None:
    world = World(exchange, Layout.flat(700))
    for step in range(50):
        world.step([vector(700, seed=4 * step + r) + 3 * r for r in range(4)])
        for rank in range(4):
            assert torch.allclose(world.states[rank]["recv.shift"], world.mean("send.shift"), atol=1e-4)


def test_shifts_of_both_hops_agree_on_scatter_gather() -> None:
    """Going up, the owner's shift is the mean of the senders'; going down, everybody's is the owners'."""
    world = World(ScatterGather(Channel(ScaledSign(block=64), Difference())), Layout.flat(2300))
    for step in range(20):
        world.step([vector(2300, seed=4 * step + r) for r in range(4)])
        assert torch.allclose(world.joined("up.recv.shift"), world.mean("up.send.shift"), atol=1e-4)
        assert torch.equal(world.joined("down.send.shift"), world.states[0]["down.recv.shift"])


def test_a_vector_that_stays_is_learnt() -> None:
    """The shift becomes the vector, and what is sent tends to zero."""
    xs = [vector(700, seed=r) for r in range(4)]
    world = World(AllGather(Channel(ScaledSign(), Difference())), Layout.flat(700))
    for _ in range(100):
        out = world.step(xs)
    mean = torch.stack(xs).mean(0)
    assert (out - mean).norm() < 0.05 * mean.norm()
    assert (world.states[2]["send.shift"] - xs[2]).norm() < 0.05 * xs[2].norm()


def test_what_is_not_finite_stays_out_of_the_shifts() -> None:
    memory = Difference(alpha=0.5)
    for bad in (float("nan"), float("inf")):
        state = {"shift": torch.ones(3)}
        out = memory.receive(torch.tensor([1.0, bad, 2.0]), state)
        assert state["shift"].tolist() == [1.5, 1.0, 2.0]
        assert out[0] == 2
        assert not out[1].isfinite()
        memory.after(torch.zeros(3), torch.tensor([bad, 1.0, bad]), state)
        assert state["shift"].tolist() == [1.5, 1.5, 2.0]


def test_alpha_outside_its_range_is_refused() -> None:
    for alpha in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"write Difference\(alpha=1 / \(1 \+ omega\)\)"):
            Difference(alpha)
