"""World: what ranks get and send, the time it takes, and decoding once for all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thinwire import Layout, methods
from thinwire.codecs import Rans
from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import Network
from thinwire.compressors import Qsgd
from thinwire.core.channel import Channel
from thinwire.exchange import AllGather, AllReduce, Mix
from thinwire.lab.swarm import Swarm
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback

LAYOUT = Layout.flat(200)


def drawn(step: int, n: int = 3) -> Tensor:
    return torch.randn(n, LAYOUT.numel, generator=torch.Generator().manual_seed(step))


def test_it_counts_what_ranks_send() -> None:
    world = World(AllReduce(), LAYOUT, 4)
    xs = drawn(0, 4)
    assert torch.allclose(world.step(xs), xs.mean(0), atol=1e-6)
    assert world.bits == pytest.approx(48)
    assert (world.steps, world.messages, world.clock.now) == (1, 4 * 6, 0)


def test_decoding_once_gives_the_same_bits() -> None:
    exchange = AllGather(Channel(Qsgd(levels=4, norm="l2", block=64), ErrorFeedback(0.2, 0.9), Rans()))
    one, all_ = (World(exchange, LAYOUT, 3, seed=5, once=once) for once in (True, False))
    for step in range(4):
        assert torch.equal(one.step(drawn(step)), all_.step(drawn(step)))
    assert [t.bytes for t in one.traffic] == [t.bytes for t in all_.traffic]
    assert one.message_bits == 8 * one.bytes / 2 / 12 / 200  # each message goes to two others
    for mine, its in zip(one.states, all_.states, strict=True):
        assert torch.equal(mine["send.residual"], its["send.residual"])
    before = one.states[0]["send.residual"].clone()
    one.rescale(2.0)
    assert torch.equal(one.states[0]["send.residual"], 2 * before)
    with pytest.raises(ValueError, match="leave once out"):
        World(methods.qsgd(exchange="scatter-gather").exchange, LAYOUT, once=True)


def test_steps_take_time_on_a_clock_that_has_a_network() -> None:
    clock = VirtualClock(4, Network("1mbit", "2ms"))
    world, free = World(AllReduce(), LAYOUT, 4, clock=clock), World(AllReduce(), LAYOUT, 4)
    for step in range(3):
        assert torch.equal(world.step(drawn(step, 4)), free.step(drawn(step, 4)))
    assert clock.now == pytest.approx(3 * 6 * (2e-3 + 8 * 4 * 200 / 4 / 1e6), rel=1e-9)


def test_a_swarm_takes_the_time_of_two_messages() -> None:
    clock = VirtualClock(5, Network("1mbit", "2ms"))
    swarm = Swarm(Mix(), 5, torch.zeros(200), clock=clock)
    swarm.step(drawn(0, 5))
    assert swarm.messages == 10
    assert clock.now == pytest.approx(2e-3 + 8 * swarm.bytes / 5 / 1e6, rel=1e-9)
