"""Velocity against torch's momentum SGD, and who keeps it where vectors are sent whole."""

from __future__ import annotations

import math

import pytest
import torch
from battery import vector

from thinwire import Channel, Layout
from thinwire.compressors import Identity, Qsgd, Sign, TopK
from thinwire.core.exchange import Exchange
from thinwire.core.method import METHODS
from thinwire.exchange import AllGather, AllReduce, Gossip, Hierarchical, ScatterGather
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback, LocalMomentum, MomentumCorrection, Velocity

LAYOUT = Layout.flat(600)


def inputs(step: int) -> list[torch.Tensor]:
    return [vector(600, seed=4 * step + r) for r in range(4)]


@pytest.mark.parametrize("nesterov", [False, True])
def test_it_is_momentum_sgd(nesterov: bool) -> None:
    world = World(AllReduce(Channel(Identity(), Velocity(0.9, nesterov))), LAYOUT)
    p = torch.nn.Parameter(torch.zeros(600))
    optimizer, x = torch.optim.SGD([p], lr=0.1, momentum=0.9, nesterov=nesterov), torch.zeros(600)
    for step in range(8):
        p.grad = torch.stack(inputs(step)).mean(0)
        optimizer.step()
        x = x - 0.1 * world.step(inputs(step))
    assert torch.allclose(x, p.detach(), atol=1e-5)


def test_clipping_is_as_in_momentum_correction() -> None:
    world = World(AllReduce(Channel(Identity(), Velocity(0.9, clip=3.0))), LAYOUT)
    expected = torch.stack([x * (3.0 / math.sqrt(4) / x.norm()) for x in inputs(0)]).mean(0)
    assert torch.allclose(world.step(inputs(0)), expected, atol=1e-6)


def test_a_bad_step_leaves_the_state() -> None:
    world = World(AllReduce(Channel(Identity(), Velocity())), LAYOUT)
    world.step(inputs(0))
    before = world.states[1]["send.velocity"].clone()
    bad = inputs(1)
    bad[1][7] = math.inf
    assert world.step(bad).isnan().all()
    assert torch.equal(world.states[1]["send.velocity"], before)


@pytest.mark.parametrize("settings", [{"momentum": 1.0}, {"momentum": -0.1}, {"clip": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="write"):
        Velocity(**settings)  # type: ignore[arg-type]


DGC = Channel(TopK(0.05), MomentumCorrection(0.8, nesterov=True, clip=2.0))
WHOLE = Channel(Identity(), Velocity(0.8, nesterov=True, clip=2.0))
VOTES = ScatterGather(Channel(Sign(), LocalMomentum(0.7)), Channel(Sign()), reduce="majority")
AVERAGES = ScatterGather(Channel(Identity(), LocalMomentum(0.7)), Channel(Identity()))
PLAIN: list[tuple[Exchange, Exchange]] = [
    (AllGather(DGC), AllReduce(WHOLE)),
    (ScatterGather(DGC), ScatterGather(WHOLE, WHOLE)),
    (VOTES, AVERAGES),
    (Hierarchical(AllGather(DGC), 2), Hierarchical(AllReduce(WHOLE), 2)),
    (Hierarchical(AllGather(Channel(Qsgd(bits=4))), 2), AllReduce()),
    (ScatterGather(Channel(Qsgd(bits=4), ErrorFeedback())), AllReduce()),
    (AllReduce(wire="bf16"), AllReduce()),
]


@pytest.mark.parametrize(("exchange", "plain"), PLAIN, ids=str)
def test_what_travels_uncompressed_keeps_the_momentum(exchange: Exchange, plain: Exchange) -> None:
    assert exchange.plain == plain
    mine, whole = World(exchange, LAYOUT), World(plain, LAYOUT)
    mine.step(inputs(0))
    whole.step(inputs(0))
    for rank in range(4):  # so that a round of warm-up can work on the state of the others
        assert whole.states[rank].keys() <= mine.states[rank].keys()
        assert all(t.shape == mine.states[rank][name].shape for name, t in whole.states[rank].items())


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_is_kept(name: str) -> None:
    """Momentum in a memory is the only thing that is not lost with the compressor."""
    exchange = METHODS[name]().exchange
    if not isinstance(exchange, Gossip):
        kept = {type(channel.memory) for channel in exchange.channels} & {MomentumCorrection, LocalMomentum}
        assert (exchange.plain == AllReduce()) == (not kept)
