"""Pairs in step, on the virtual driver: sums stay, ranks agree, two sides, refusals. Threads are tested elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from thinwire import Channel, Context, Key, Layout, methods
from thinwire.comm import Comm, run
from thinwire.compressors import Identity, Qsgd, RandomK
from thinwire.compressors import get as compressor
from thinwire.core.config import from_json
from thinwire.core.method import METHODS
from thinwire.engine.shared import Shared
from thinwire.exchange import Pairs
from thinwire.lab.swarm import Swarm
from thinwire.memory import ErrorFeedback
from thinwire.topology import (
    Complete,
    Edges,
    ErdosRenyi,
    Exponential,
    Hypercube,
    Matching,
    OnePeer,
    Ring,
    Star,
    Topology,
    Torus,
)

D = 600
COMPRESSORS = [
    "identity",
    "qsgd:bits=4",
    "natural",
    "topk:ratio=0.1",
    "scaled-sign",
    "randomk:ratio=0.1,scaled=false",
    "eden:bits=2",
    "terngrad",
]


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def swarm(n: int, compressed: str = "identity", topology: Topology | None = None, d: int = D) -> Swarm:
    """Models that have already moved apart."""
    channel = Channel(compressor(compressed))
    made = Swarm(Pairs(channel, topology or Ring()), n, torch.zeros(d, dtype=torch.float64), seed=5)
    made.models = noise(1, n, d)
    return made


GRAPHS: list[Topology] = [Ring(), Star(), Hypercube(), Torus(), Edges("0-1 1-2 2-3 3-4 4-5 5-6 6-7 0-5")]
PAIRED = [(c, GRAPHS[(number + half) % 5]) for number, c in enumerate(COMPRESSORS) for half in (0, 2)]
"""Every compressor on two graphs, every graph with three compressors or more."""


@pytest.mark.parametrize(("compressed", "graph"), PAIRED, ids=str)
def test_the_sum_stays_whatever_the_compressor_loses(compressed: str, graph: Topology) -> None:
    world = swarm(8, compressed, graph)
    for step in range(6):
        updates = noise(100 + step, 8, D)
        expected, before = world.models.sum(0) + updates.sum(0), world.models
        world.step(updates)
        assert float((world.models.sum(0) - expected).abs().max()) < 1e-12
        assert not torch.equal(world.models, before + updates)  # they did move


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_ranks_hold_their_mean_after_one_exchange(dtype: torch.dtype) -> None:
    world = Swarm(Pairs(), 2, torch.zeros(D, dtype=dtype))
    world.models = noise(2, 2, D).float().to(dtype)
    mean = world.mean
    world.step(torch.zeros(2, D))
    assert torch.allclose(world.models, mean.repeat(2, 1), rtol=0, atol=1e-15 if dtype == torch.float64 else 3e-7)


def test_the_second_that_asks_meets_the_model_that_the_first_has_moved() -> None:
    """Leaves 1 and 2 both ask the hub, in this order."""
    world = Swarm(Pairs(topology=Star()), 3, torch.zeros(1, dtype=torch.float64))
    world.models = torch.tensor([[0.0], [4.0], [8.0]], dtype=torch.float64)
    world.step(torch.zeros(3, 1))
    assert world.models.flatten().tolist() == [5.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("compressed", "steps", "bar"), [("identity", 100, 1e-7), ("randomk:ratio=0.5,scaled=false", 150, 1e-4)]
)
def test_ranks_come_to_agree(compressed: str, steps: int, bar: float) -> None:
    """Places that both ends draw alike are averaged as they are, so that sparse messages only take longer."""
    world = swarm(8, compressed)
    first = world.distance
    for _ in range(steps):
        world.step(torch.zeros(8, D))
    assert world.distance < bar * first
    assert torch.allclose(world.models[0], noise(1, 8, D).mean(0), rtol=0, atol=10 * bar)


def test_what_four_bits_lose_keeps_ranks_apart() -> None:
    """Models do not tend to zero, nor does what is lost of them: the limit of sending them without a memory."""
    world = swarm(8, "qsgd:bits=4")
    for _ in range(75):
        world.step(torch.zeros(8, D))
    assert world.distance > 1e-2 * float(noise(1, 8, D).norm(dim=1).mean())


def test_64_ranks() -> None:
    world = swarm(64, topology=Hypercube(), d=50)
    total, first = world.models.sum(0), world.distance
    for _ in range(30):
        world.step(torch.zeros(64, 50))
    assert float((world.models.sum(0) - total).abs().max()) < 1e-12
    assert world.distance < 1e-2 * first
    assert world.messages == 30 * 64  # 32 ask, and each is answered
    assert world.bytes == 30 * 64 * (32 + 4 * 50)


def test_quadratics() -> None:
    """f_i = |x - b_i|^2 / 2: the mean of the models is that of gradient descent, and ranks follow as lr falls."""
    b = 3 * noise(3, 8, 50)
    world = Swarm(Pairs(), 8, torch.zeros(50, dtype=torch.float64))
    mean, distances = torch.zeros(50, dtype=torch.float64), []
    for step in range(400):
        lr = 0.2 / (1 + step / 40)
        mean = mean - lr * (mean - b.mean(0))
        world.step(-lr * (world.models - b))
        assert float((world.mean - mean).abs().max()) < 1e-12
        distances.append(world.distance)
    assert float((world.mean - b.mean(0)).norm()) < 1e-4 * float(b.mean(0).norm())
    assert distances[-1] < 0.25 * max(distances)


def test_rank_0_answers_and_its_neighbours_ask() -> None:
    pairs = Pairs()
    assert [pairs.active(rank, 6) for rank in range(6)] == [False, True] * 3
    assert [Pairs(topology=Star()).active(rank, 4) for rank in range(4)] == [False, True, True, True]


def test_choices_are_even_and_a_function_of_the_key() -> None:
    pairs, near = Pairs(), (2, 5, 7)
    picks = [pairs.choose(Key(1, step, 3), 3, near) for step in range(3000)]
    assert picks == [pairs.choose(Key(1, step, 0, bucket=4, offset=512), 3, near) for step in range(3000)]
    assert all(900 < count < 1100 for count in Counter(picks).values())
    assert picks[:50] != [pairs.choose(Key(2, step, 3), 3, near) for step in range(50)]


def test_no_two_edges_share_a_key() -> None:
    pairs = Pairs(topology=Complete())
    keys = [pairs.on_edge(Key(bucket=bucket), i, j, 6) for bucket in range(3) for i, j in pairs.edges(6)]
    assert len(set(keys)) == 3 * 15
    assert pairs.on_edge(Key(), 4, 2, 6) == pairs.on_edge(Key(), 2, 4, 6)


async def conversation(comm: Comm) -> Any:
    """Rank 1 greets, asks and ends; rank 0 answers. Each message has its number for a step."""
    pairs, model, peer = Pairs(), Shared(torch.full((D,), float(comm.rank))), 1 - comm.rank
    context = [Context(comm, Layout.flat(D), Key(1, step, comm.rank)) for step in range(3)]
    if comm.rank == 0:
        return [await pairs.answer(model, peer, ctx) for ctx in context], model.snapshot(), model.version
    await pairs.greet(peer, context[0])
    await pairs.ask(model, peer, context[1])
    await pairs.greet(peer, context[2], last=True)
    return None, model.snapshot(), model.version


def test_the_halves() -> None:
    (said, first, version), (_, second, other) = run(conversation, 2).results
    assert said == [True, True, False]
    assert torch.equal(first, torch.full((D,), 0.5))
    assert torch.equal(second, first)
    assert version == other == 1


REFUSED: list[tuple[Topology, int, str]] = [
    (Ring(), 7, "a ring of 7 is not bipartite.*write an even number of ranks, or topology='star'"),
    (Complete(), 8, "a complete of 8 is not bipartite.*write topology='ring'"),
    (Complete(), 5, "not bipartite.*write topology='star'"),
    (OnePeer(), 8, r"directed.*write Ring\(\)"),
    (Exponential(), 8, r"directed.*write Ring\(\)"),
    (Matching(), 8, r"changes from step to step.*write Ring\(\)"),
    (ErdosRenyi(p=0.9), 9, r"not bipartite.*write topology='star'"),
]


@pytest.mark.parametrize(("graph", "n", "said"), REFUSED, ids=str)
def test_graphs_that_have_no_two_sides(graph: Topology, n: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pairs(topology=graph).check(n)


def test_what_is_no_part_of_it() -> None:
    with pytest.raises(ValueError, match=r"remembers what was sent last; write Pairs\(Channel\(Qsgd"):
        Pairs(Channel(Qsgd(bits=8), ErrorFeedback()))
    with pytest.raises(TypeError, match=r"write Pairs\(Channel\(Identity\(\)\)\)"):
        Pairs(Identity())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"write topology=Ring\(\)"):
        Pairs(topology="ring")  # type: ignore[arg-type]


def test_the_method_is_a_value() -> None:
    made = methods.ad_psgd("torus:rows=4", compressor="cast:format=fp16")
    assert made.sync.staleness is None
    assert made.id == "ad-psgd:topology=(torus:rows=4),compressor=(cast:format=fp16)"
    assert METHODS.parse(made.id) == made == from_json(made.to_json())
    assert METHODS.parse("ad-psgd").exchange == Pairs()
    exchange = Pairs(Channel(RandomK(ratio=0.5, scaled=False)), Hypercube())
    assert from_json(exchange.to_json()) == exchange
    assert exchange.plain == Pairs(topology=Hypercube())
