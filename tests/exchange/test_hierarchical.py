"""Hierarchical: plain inside a group, any exchange between groups."""

from __future__ import annotations

import re

import pytest
import torch
from battery import LAYOUT, vector

from thinwire import Channel, Comm, Layout, run
from thinwire.compressors import Identity, Qsgd, ScaledSign, TernGrad
from thinwire.core.exchange import Exchange
from thinwire.core.method import METHODS
from thinwire.core.types import State
from thinwire.exchange import AllGather, AllReduce, Gossip, Hierarchical, PowerSgd, ScatterGather, SharedScale
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback

N = 8
PLAIN: list[Exchange] = [AllReduce(), AllGather(Channel(Identity())), ScatterGather(Channel(Identity()))]


@pytest.mark.parametrize("layout", [Layout.flat(0), Layout.flat(1), LAYOUT, Layout.flat(5000)], ids=lambda x: x.numel)
@pytest.mark.parametrize("local", [1, 2, 4, 8])
@pytest.mark.parametrize("outer", PLAIN, ids=lambda e: e.name)
def test_without_loss_it_is_the_mean(outer: Exchange, local: int, layout: Layout) -> None:
    xs = [vector(layout.numel, seed=r) for r in range(N)]
    out = World(Hierarchical(outer, local), layout, N).step(xs)
    assert torch.allclose(out, torch.stack(xs).mean(0), atol=1e-6)


def test_it_nests() -> None:
    xs = [vector(3000, seed=r) for r in range(N)]
    nested = Hierarchical(Hierarchical(AllReduce(), 2), 2)
    assert torch.allclose(World(nested, Layout.flat(3000), N).step(xs), torch.stack(xs).mean(0), atol=1e-6)
    assert nested.groups(8)[:6] == [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2, 4, 6), (1, 3, 5, 7)]
    assert nested.groups(8)[6:] == [(0, 2), (4, 6), (0, 4), (2, 6), (1, 3), (5, 7), (1, 5), (3, 7)]


@pytest.mark.parametrize("local", [1, 2, 8])
def test_error_feedback_conserves_what_the_groups_agreed_on(local: int) -> None:
    """Each rank's residual covers its shard, at the place that `span` says."""
    exchange = Hierarchical(ScatterGather(Channel(ScaledSign(block=64), ErrorFeedback())), local)
    layout, world = Layout.flat(5000), World(exchange, Layout.flat(5000), N)
    given, got = torch.zeros(5000), torch.zeros(5000)
    for step in range(10):
        xs = [vector(5000, seed=N * step + r) for r in range(N)]
        given += torch.stack(xs).mean(0)
        got += world.step(xs)
    held = torch.zeros(5000)
    for rank, state in enumerate(world.states):
        comm = Comm(rank, N)
        for name, weight in {"up.send.residual": local / N, "down.send.residual": 1.0}.items():
            start, stop = exchange.span(name, layout, comm)
            assert state[name].numel() == stop - start
            held[start:stop] += weight * state[name]
    assert torch.allclose(got + held, given, atol=1e-4)


@pytest.mark.parametrize("outer", [Qsgd(bits=4), TernGrad()], ids=str)
def test_compressed_between_groups(outer: Qsgd | TernGrad) -> None:
    """Close to the mean, with the same bits on all ranks, and noise that differs between shards."""
    xs = [vector(5000, seed=0)] * N
    for exchange in (AllGather(Channel(outer)), ScatterGather(Channel(outer)), SharedScale(outer)):
        world = World(Hierarchical(exchange, 4), Layout.flat(5000), N)
        mean = sum((world.step(xs) for _ in range(20)), torch.zeros(5000)) / 20
        assert (mean - xs[0]).norm() < 0.4 * xs[0].norm()


def test_bytes_are_those_of_a_shard() -> None:
    """Inside: float32 of all but the own shard, twice. Between: the outer exchange of one shard."""
    d, local, channel = 1 << 14, 4, Channel(Qsgd(bits=4))
    world = World(Hierarchical(AllGather(channel), local), Layout.flat(d), N)
    world.step([vector(d, seed=r) for r in range(N)])
    inner = 2 * 4 * d * (local - 1) // local
    outer = (N // local - 1) * channel.nbytes(Layout.flat(d // local))
    assert world.traffic[0].bytes == inner + outer


def test_groups() -> None:
    assert Hierarchical(AllReduce(), 2).groups(6) == [(0, 1), (2, 3), (4, 5), (0, 2, 4), (1, 3, 5)]
    assert Hierarchical(AllReduce(), 1).groups(4) == []  # everybody is a group already, and a rank needs none
    assert Hierarchical(AllReduce(), 4).groups(4) == []


def test_ranks_that_do_not_divide_are_refused() -> None:
    exchange = Hierarchical(AllReduce(), 4)

    async def program(comm: Comm) -> State:
        return exchange.init(LAYOUT, comm)

    with pytest.raises(
        ValueError, match=r"local=4\) cannot cut 6 ranks into equal groups; write local=1 or 2 or 3 or 6"
    ):
        run(program, 6)
    with pytest.raises(ValueError, match="cannot cut 6 ranks"):
        exchange.groups(6)


@pytest.mark.parametrize("name", [n for n in METHODS if isinstance(METHODS[n]().exchange, Gossip)])
def test_what_gossips_is_refused(name: str) -> None:
    """The engine would not see its graph, its start or what it does with small tensors."""
    gossip = METHODS[name]().exchange
    line = r"write {} alone, or Hierarchical\(AllGather\(Channel\(Qsgd\(bits=4\)\)\), local=2\)"
    with pytest.raises(ValueError, match=line.format(re.escape(repr(gossip)))):
        Hierarchical(gossip, 2)


def test_facts_of_the_outer_exchange_are_handed_on() -> None:
    votes = AllGather(Channel(Identity()), reduce="majority")
    for outer in (PowerSgd(), SharedScale(TernGrad()), AllGather(Channel(Qsgd(bits=4))), votes):
        assert Hierarchical(outer, 2).whole_tensors == outer.whole_tensors
        assert Hierarchical(outer, 2).keeps_scale == outer.keeps_scale
        assert Hierarchical(outer, 2).hops == outer.hops
    assert PowerSgd().whole_tensors
    assert not votes.keeps_scale


def test_low_rank_between_groups_conserves() -> None:
    xs = [vector(4096, seed=r) for r in range(4)]
    world = World(Hierarchical(PowerSgd(), 2), Layout(("w",), ((64, 64),)), 4)
    got = sum((world.step(xs) for _ in range(150)), torch.zeros(4096)) / 150
    mean = torch.stack(xs).mean(0)
    assert (got - mean).norm() < 0.2 * mean.norm()  # error feedback sends what the low rank leaves


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(TypeError, match=r"write Hierarchical\(AllGather\(Channel"):
        Hierarchical(Channel(Identity()), 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="number of ranks on one machine"):
        Hierarchical(AllReduce(), 0)
