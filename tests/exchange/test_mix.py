"""Mix keeps the mean of the models, whatever the compressor, the memory and the graph do; and what it reduces to."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import pytest
import torch
from battery import INSTANCES, KINDS, LAYOUT
from swarms import apart, drift, dyadic, normal

from thinwire import Channel
from thinwire.compressors import Identity, IntBlock, Qsgd, ScaledSign, TopK
from thinwire.core.compressor import Compressor
from thinwire.exchange import Mix
from thinwire.memory import Difference, ErrorFeedback, Memory, NoMemory
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
    gap,
)

FIXED: list[Topology] = [
    Ring(),
    Torus(),
    Complete(),
    Hypercube(),
    Star(),
    ErdosRenyi(),
    Edges("0-1 1-2 2-3 3-4 4-5 5-6 6-7 0-4"),
]
OTHERS: list[Topology] = [Exponential(), OnePeer(), Matching(), Matching(seed=5)]  # directed, changing, or both


def remembers(c: Compressor, memory: Memory) -> Channel:
    """A channel that may warn: errors of some compressors grow, and the mean must not care."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lets errors grow")
        return Channel(c, memory)


def mixes(c: Compressor) -> Iterator[Mix]:
    """D-PSGD, DeepSqueeze and CHOCO-SGD with this compressor, on a ring and on graphs that change, early and not."""
    yield Mix(Channel(c), Ring(), eta=0.3)
    yield Mix(Channel(c), OnePeer(), eta=1.0, early=True)
    if c.keeps_scale:  # others are refused by the Channel, see below
        yield Mix(remembers(c, ErrorFeedback()), Ring(), eta=0.3)
        yield Mix(remembers(c, ErrorFeedback()), Matching(), eta=0.3, early=True)
        yield Mix(remembers(c, Difference()), Ring(), eta=0.3)
        yield Mix(remembers(c, Difference()), Ring(), eta=0.3, early=True)
        yield Mix(remembers(c, Difference()), Ring(), eta=0.3, copies=True)


@pytest.mark.parametrize(("c", "number"), [(c, i) for i, c in enumerate(KINDS)], ids=str)
def test_the_mean_is_kept_with_every_compressor(c: Compressor, number: int, long: bool) -> None:
    """Each compressor with every memory. Graphs, times and copies take turns; with --long each meets all."""
    some = list(mixes(c))
    turns = {number % 2, 2 + number % 2, 4 + number % 3}
    for mix in some if long else [mix for place, mix in enumerate(some) if place in turns]:
        assert drift(apart(mix, normal(3, LAYOUT.numel), LAYOUT), steps=2) < 1e-12, mix


def test_which_compressors_a_memory_refuses() -> None:
    """Numbers that do not grow with what they stand for cannot be followed: signs without a scale."""
    refused = [c for c in INSTANCES if not c.keeps_scale]
    assert "sign" in {c.id for c in refused}
    for c in refused:
        for memory in (ErrorFeedback(), Difference()):
            with pytest.raises(ValueError, match="do not grow with its input"):
                Channel(c, memory)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("topology", [*FIXED, *OTHERS], ids=lambda t: t.id)
def test_the_mean_is_kept_on_every_graph(topology: Topology, early: bool) -> None:
    """Columns of W sum to one: for symmetric graphs, and for directed ones whose rows do too."""
    memories: list[Memory] = [NoMemory(), ErrorFeedback()]
    if topology in FIXED:
        memories.append(Difference())
    for memory in memories:
        for copies in {False, isinstance(memory, Difference)}:
            mix = Mix(Channel(ScaledSign(), memory), topology, 0.3, early, copies)
            assert drift(apart(mix, normal(8, 40)), steps=3) < 1e-12, mix


def test_early_mixes_the_models_before_the_step() -> None:
    models, updates, w = dyadic(8, 40), dyadic(8, 40, seed=1), Ring().matrix(8)
    late, early = (apart(Mix(eta=1.0, early=early), models) for early in (False, True))
    late.step(updates)
    early.step(updates)
    assert torch.allclose(late.models, w @ (models + updates), rtol=0, atol=1e-12)
    assert torch.allclose(early.models, w @ models + updates, rtol=0, atol=1e-12)


@pytest.mark.parametrize("eta", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("memory", [NoMemory(), ErrorFeedback(), Difference()], ids=lambda m: m.name)
def test_without_compression_it_is_w_eff(memory: Memory, eta: float) -> None:
    """W_eff = (1 - eta) I + eta W. The first step is exact; later ones differ by the float32 of messages."""
    mix = Mix(Channel(Identity(), memory), Torus(), eta)
    swarm, models = apart(mix, dyadic(8, 40)), dyadic(8, 40)
    w = (1 - eta) * torch.eye(8).double() + eta * Torus().matrix(8)
    for step in range(4):
        updates = dyadic(8, 40, seed=1 + step)
        swarm.step(updates)
        models = w @ (models + updates)
        assert torch.allclose(swarm.models, models, rtol=0, atol=1e-5 if step else 1e-12)


def test_d_psgd_on_a_complete_graph_is_synchronous_sgd() -> None:
    """`early=False` is needed; otherwise ranks are apart by their last updates."""
    x = dyadic(40)
    late, early = (apart(Mix(topology=Complete(), eta=1.0, early=e), x.repeat(4, 1)) for e in (False, True))
    for step in range(4):
        updates = dyadic(4, 40, seed=1 + step)
        late.step(updates)
        early.step(updates)
        x = x + updates.mean(0)
        assert torch.allclose(late.models, x.expand(4, -1), rtol=0, atol=1e-12)
        assert torch.allclose(early.models, x - updates.mean(0) + updates, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("c", "topology"),
    [
        (ScaledSign(), Ring()),
        (TopK(ratio=0.1), Torus()),
        (Qsgd(bits=4), Star()),
        (IntBlock(bits=4, block=32), Ring()),
    ],
    ids=lambda v: v.id,
)
def test_a_copy_a_neighbour_is_the_same_as_one_sum(c: Compressor, topology: Topology) -> None:
    models = normal(8, 200).float()
    swarms = [apart(Mix(Channel(c, Difference()), topology, 0.2, copies=copies), models) for copies in (True, False)]
    for step in range(8):
        updates = 0.1 * normal(8, 200, seed=1 + step).float()
        for swarm in swarms:
            swarm.step(updates)
    full, light = swarms
    assert float((full.models - light.models).abs().max()) < 1e-5
    assert full.distance < 0.9 * apart(full.exchange, models).distance  # and something was exchanged
    assert len(light.states[0]) == 2
    assert len(full.states[0]) == 1 + len(topology.around(0, 8).sources)
    for i, state in enumerate(full.states):
        for j in topology.around(i, 8).sources:
            assert torch.equal(state[f"recv.shift.{j}"], full.states[j]["send.shift"])


@pytest.mark.parametrize("n", [4, 8, 16])
def test_the_one_peer_exponential_graph_makes_the_exact_mean(n: int) -> None:
    swarm = apart(Mix(topology=OnePeer(), eta=1.0), dyadic(n, 40))
    steps, mean = int(math.log2(n)), swarm.mean
    for step in range(steps):
        assert swarm.distance > 0.1, step
        swarm.step(torch.zeros(n, 40))
    assert torch.equal(swarm.models, mean.expand(n, -1))


def test_six_ranks_are_no_power_of_two() -> None:
    swarm = apart(Mix(topology=OnePeer(), eta=1.0), dyadic(6, 40))
    before = swarm.distance
    for _ in range(3):
        swarm.step(torch.zeros(6, 40))
    assert 0.02 * before < swarm.distance < 0.5 * before


@pytest.mark.parametrize("topology", [Ring(), Torus(), Exponential(), Star()], ids=lambda t: t.id)
def test_disagreement_shrinks_by_rho_a_step_or_more(topology: Topology) -> None:
    swarm = apart(Mix(topology=topology, eta=1.0), normal(8, 40))
    rho = 1 - gap(topology, 8)
    for _ in range(30):
        before = swarm.distance
        swarm.step(torch.zeros(8, 40))
        assert swarm.distance < rho * before + 1e-6  # of float32
    assert swarm.distance < rho**30 * 7 + 1e-5


PAYLOADS: list[tuple[Topology, Channel]] = [
    (Ring(), Channel(Identity())),
    (Torus(), Channel(TopK(ratio=0.1, indices="packed"), Difference())),
    (Exponential(), Channel(Qsgd(bits=4), ErrorFeedback())),
    (OnePeer(), Channel(Identity())),
]


@pytest.mark.parametrize(("topology", "channel"), PAYLOADS, ids=lambda v: v.id)
def test_one_payload_a_neighbour_and_step(topology: Topology, channel: Channel) -> None:
    swarm = apart(Mix(channel, topology, 0.2), normal(8, LAYOUT.numel), LAYOUT)
    for _ in range(3):
        swarm.step(torch.zeros_like(swarm.models))
    assert swarm.messages == 3 * 8 * len(topology.around(0, 8).peers)
    assert swarm.bytes == swarm.messages * channel.nbytes(LAYOUT)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 513])
def test_few_ranks_and_few_elements(n: int, size: int) -> None:
    for memory in (NoMemory(), ErrorFeedback(), Difference()):
        swarm = apart(Mix(Channel(Qsgd(bits=4), memory), Ring(), 0.3), normal(n, size))
        before = swarm.mean
        for _ in range(3):
            swarm.step(torch.zeros(n, size))
        assert swarm.models.shape == (n, size)
        assert torch.allclose(swarm.mean, before, rtol=0, atol=1e-12)
