"""The way down from a server: compressed with error feedback at both ends, in step and without rounds."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw
from thinwire import Channel, Comm, Layout, methods
from thinwire.compressors import Identity, Qsgd, ScaledSign, TopK
from thinwire.core.types import Key
from thinwire.exchange import ScatterGather, Server
from thinwire.lab.world import World
from thinwire.memory import ErrorFeedback
from thinwire.server import Asgd
from thinwire.server.down import Receiver, Sender
from thinwire.sim import Constant, Network, Problem, simulate

D, N = 16, 4
TARGETS = torch.randn(8, D, generator=torch.Generator().manual_seed(0))
LAYOUT = Layout.flat(D)


def sends(compressor: ScaledSign | TopK, x: Tensor) -> Tensor:
    """C(x)."""
    return compressor.decode(compressor.encode(x, LAYOUT, Key()), LAYOUT, key=Key())


@pytest.mark.parametrize("compressor", [ScaledSign(), TopK(k=4)], ids=lambda c: c.id)
def test_in_step_it_is_double_squeeze(compressor: ScaledSign | TopK) -> None:
    """Algorithm 1 of the paper, for a server that is rank 0, and for owners of shards (one here)."""
    both = Channel(compressor, ErrorFeedback())
    worlds = [World(Server(both, down=both), LAYOUT, 3), World(ScatterGather(both), LAYOUT, 3)]
    e, e_server = torch.zeros(3, D), torch.zeros(D)
    draw = torch.Generator().manual_seed(1)
    for _ in range(5):
        g = torch.randn(3, D, generator=draw)
        q = torch.stack([sends(compressor, v) for v in g + e])
        e = g + e - q
        v = q.mean(0) + e_server
        sent = sends(compressor, v)
        e_server = v - sent
        for world in worlds:
            torch.testing.assert_close(world.step(list(g)), sent, rtol=1e-5, atol=1e-6)


def test_what_a_worker_has_and_what_is_owed_to_it_are_the_model() -> None:
    """Whoever is answered, and however far the model has moved since: x_w + e_w = x."""
    x, draw = torch.zeros(D), torch.Generator().manual_seed(2)
    channel = Channel(ScaledSign(), ErrorFeedback())
    sender = Sender(channel, LAYOUT, x, 2, comm=Comm(0, 1), seed=3, shard=1)
    ends = [Receiver(channel, LAYOUT, x.clone(), seed=3, rank=rank, shard=1) for rank in range(2)]
    has = [x.clone(), x.clone()]
    for step in range(12):
        x = x + torch.randn(D, generator=draw)
        rank = int(step % 3 == 0)
        got = ends[rank].take(sender.send(rank, x, has[rank]), x.device)
        assert torch.equal(got, has[rank])  # the server knows what the worker has
        owed = dict(sender.save()["memory"])[rank]["residual"]
        torch.testing.assert_close(got + owed, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compressor", [Identity(), ScaledSign()], ids=lambda c: c.id)
def test_a_worker_is_not_led_away_by_rounding(compressor: Identity | ScaledSign) -> None:
    """After 2000 answers x_w + e_w is as near to x as after the first ones, also where nothing is lost."""
    x, draw = 4 + torch.randn(D, generator=torch.Generator().manual_seed(3)), torch.Generator().manual_seed(2)
    channel = Channel(compressor, ErrorFeedback())
    sender = Sender(channel, LAYOUT, x, 1, comm=Comm(0, 1), seed=3, shard=0)
    end = Receiver(channel, LAYOUT, x.clone(), seed=3, rank=0, shard=0)
    for _ in range(2000):
        x = x + 0.01 * torch.randn(D, generator=draw)
        got = end.take(sender.send(0, x), x.device)
    owed = dict(sender.save()["memory"])[0]["residual"]
    assert (got + owed - x).abs().max() < 2e-6


def test_a_state_that_says_only_what_a_worker_is_owed_goes_on() -> None:
    """As thinwire 0.1 saved it: what the worker was aimed at, and its residual."""
    x, channel = torch.arange(1.0, D + 1), Channel(ScaledSign(), ErrorFeedback())
    makes = {"comm": Comm(0, 1), "seed": 3, "shard": 0}
    sender = Sender(channel, LAYOUT, torch.zeros(D), 1, **makes)  # type: ignore[arg-type]
    end = Receiver(channel, LAYOUT, torch.zeros(D), seed=3, rank=0, shard=0)
    end.take(sender.send(0, x), x.device)
    saved = sender.save()
    del saved["has"]
    other = Sender(channel, LAYOUT, torch.zeros(D), 1, **makes)  # type: ignore[arg-type]
    other.load(saved)
    got = end.take(other.send(0, 2 * x), x.device)
    torch.testing.assert_close(got + dict(other.save()["memory"])[0]["residual"], 2 * x)


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    return (model.x - TARGETS[rank]).square().sum() / 2


PROBLEM = Problem(partial(Point, D), loss, lambda p: SGD(p, lr=0.02), seconds=0.1)


@pytest.mark.parametrize("name", ["dc-asgd", "ssp"])
def test_every_method_finds_the_mean(name: str) -> None:
    made = tw.method(f"{name}:compressor=scaled-sign,feedback=true,down=scaled-sign,servers=1")
    done = simulate(made, PROBLEM, N + 1, steps=100, network=Network("1gbit", "1ms"), min_size=0)
    torch.testing.assert_close(torch.cat(list(done.models[0].parameters())), TARGETS[:N].mean(0), rtol=0.1, atol=0.2)
    assert made == tw.method(made.id)


def test_bytes_down_are_those_of_the_compressor() -> None:
    down = Channel(Qsgd(bits=4), ErrorFeedback())
    method = tw.Method(Server(rule=Asgd(), down=down, shards=1), tw.Sync(staleness=None))
    done = simulate(method, PROBLEM, N, steps=10, network=Network("1gbit", "1ms"), min_size=0)
    last = 4 * D + 16
    assert done.stats[0]["bytes_sent"] == (N - 1) * (10 * (down.nbytes(LAYOUT) + 16) + last)


def test_without_loss_it_is_the_model_to_rounding() -> None:
    more = {"steps": 15, "network": Network("1gbit", "1ms"), "stragglers": Constant({1: 2.5}), "min_size": 0}
    plain, moved = (
        simulate(tw.Method(Server(rule=Asgd(), down=down), tw.Sync(staleness=None)), PROBLEM, N, **more)  # type: ignore[arg-type]
        for down in (None, Channel(Identity(), ErrorFeedback()))
    )
    assert [one.rank for one in plain.moments] == [one.rank for one in moved.moments]
    for a, b in zip(plain.models[0].parameters(), moved.models[0].parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_method_has_its_compressor_both_ways() -> None:
    exchange = methods.double_squeeze("topk:ratio=0.1").exchange
    assert exchange == ScatterGather(Channel(TopK(ratio=0.1), ErrorFeedback()))
