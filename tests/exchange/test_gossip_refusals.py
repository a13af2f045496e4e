"""What gossip refuses, with the line to write; and ranks that are gone, after which the others keep their mean."""

from __future__ import annotations

import pytest
import torch
from swarms import apart, normal
from torch import Tensor

from thinwire import Channel
from thinwire.comm import Comm, run
from thinwire.compressors import Identity, Qsgd, ScaledSign, TopK
from thinwire.core.types import Context, Key
from thinwire.exchange import Dcd, Ecd, Mix
from thinwire.lab.swarm import Swarm
from thinwire.memory import Difference, ErrorFeedback, Lazy, LocalMomentum, Memory, NoMemory
from thinwire.topology import (
    Complete,
    Exponential,
    Hypercube,
    Matching,
    OnePeer,
    Ring,
    Star,
    Topology,
    Torus,
    Weights,
)


def test_parts_of_the_wrong_kind() -> None:
    for make, name in ((Mix, "Mix"), (Dcd, "Dcd"), (Ecd, "Ecd")):
        with pytest.raises(TypeError, match=rf"{name} takes a Channel; write {name}\(Channel\(Identity\(\)\)\)"):
            make(Identity())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=rf"{name}\(topology=...\) takes a Topology; .*write topology=Ring\(\)"):
            make(topology="ring")  # type: ignore[arg-type]


@pytest.mark.parametrize("eta", [0, -0.1, 1.01, float("inf"), float("nan")])
def test_eta_outside_its_range(eta: float) -> None:
    with pytest.raises(ValueError, match=r"is outside 0 < eta <= 1; write eta=None to have it chosen"):
        Mix(eta=eta)


def test_memories_that_are_not_for_models() -> None:
    of_gradients: list[Memory] = [LocalMomentum(), Lazy()]
    for memory in of_gradients:
        with pytest.raises(ValueError, match=r"is for gradients; write Channel\(..., ErrorFeedback\(\)\)"):
            Mix(Channel(Qsgd(bits=8), memory))
    with pytest.raises(ValueError, match=r"nothing may decay; .*: write ErrorFeedback\(\)"):
        Mix(Channel(Qsgd(bits=8), ErrorFeedback(alpha=0.2, beta=0.9)))
    with pytest.raises(ValueError, match=r"got Difference\(alpha=0\.5\): write Difference\(\)"):
        Mix(Channel(Qsgd(bits=8), Difference(alpha=0.5)))
    for make, name in ((Dcd, "Dcd"), (Ecd, "Ecd")):
        for memory in (ErrorFeedback(), Difference()):
            with pytest.raises(
                ValueError, match=rf"{name} is its own memory; .*: write {name}\(Channel\(Qsgd\(bits=8"
            ):
                make(Channel(Qsgd(bits=8), memory))


def test_copies_are_of_differences() -> None:
    for memory in (NoMemory(), ErrorFeedback()):
        with pytest.raises(ValueError, match=r"Mix\(copies=True\) is for Channel\(..., Difference\(\)\)"):
            Mix(Channel(Qsgd(bits=8), memory), copies=True)


def test_ecd_refuses_what_is_biased() -> None:
    with pytest.raises(ValueError, match=r"scaled-sign are biased.*; write ecd_psgd\(compressor='qsgd:bits=8'\)"):
        Ecd(Channel(ScaledSign()))


@pytest.mark.parametrize("topology", [OnePeer(), Matching()], ids=lambda t: t.id)
@pytest.mark.parametrize("exchange", [Mix, Dcd, Ecd])
def test_edges_that_change(exchange: type[Mix] | type[Dcd] | type[Ecd], topology: Topology) -> None:
    """For what is kept of neighbours; without a memory, or with error feedback, they may."""
    channel = Channel(Qsgd(bits=8), Difference()) if exchange is Mix else Channel(Qsgd(bits=8))
    with pytest.raises(ValueError, match=r"changes its edges; write topology=Ring\(\), or deepsqueeze\(\)"):
        exchange(channel, topology).check(8)
    with pytest.raises(ValueError, match="changes its edges"):
        Swarm(exchange(channel, topology), 8, normal(40))
    exchange(channel, Matching()).check(2)  # there is only one edge
    for memory in (NoMemory(), ErrorFeedback()):
        Mix(Channel(Qsgd(bits=8), memory), topology, 0.5).check(8)


def test_edges_with_a_direction() -> None:
    channel, arrows = Channel(Qsgd(bits=8)), Exponential()
    for exchange in (Mix(Channel(Qsgd(bits=8), Difference()), arrows), Dcd(channel, arrows), Ecd(channel, arrows)):
        with pytest.raises(ValueError, match=r"symmetric W, and that of Exponential\(\) is not; write topology=Ring"):
            exchange.check(8)
    Mix(channel, arrows).check(8)  # rows and columns sum to one, which is enough


def test_graphs_that_do_not_fit() -> None:
    circle = Weights(((0.5, 0.5, 0.0), (0.0, 0.5, 0.5), (0.5, 0.0, 0.5)), directed=True)
    Mix(topology=circle).check(3)
    lopsided = Weights(((0.5, 0.5, 0.5), (0.25, 0.5, 0.0), (0.25, 0.0, 0.5)), directed=True)
    with pytest.raises(ValueError, match=r"row 0 of .* sums to 1\.5: the mean of the models would move; write sgp\("):
        Mix(topology=lopsided).check(3)
    for exchange in (Mix(topology=Hypercube()), Dcd(topology=Hypercube()), Ecd(topology=Hypercube())):
        with pytest.raises(ValueError, match="write"):
            exchange.check(6)


def test_what_can_drop_a_neighbour_says_so() -> None:
    c = TopK(ratio=0.1)
    for mix in (Mix(), Mix(Channel(c, ErrorFeedback())), Mix(Channel(c, Difference()), copies=True)):
        assert mix.cannot_drop == ""
    assert Mix(Channel(c, Difference())).cannot_drop.startswith("write copies=True")
    for exchange in (Dcd(), Ecd()):
        assert exchange.cannot_drop == "write deepsqueeze(), or choco_sgd(copies=True)"


def step(swarm: Swarm, updates: Tensor, gone: set[int]) -> None:
    """One step of those that are left; each of them knows who is gone."""
    half = swarm.models + updates

    async def program(comm: Comm) -> Tensor:
        if comm.rank in gone:
            return half[comm.rank]
        comm.gone.update(gone)
        ctx = Context(comm, swarm.layout, Key(step=swarm.steps, rank=comm.rank), before=swarm.models[comm.rank])
        return await swarm.exchange(half[comm.rank].clone(), swarm.states[comm.rank], ctx)

    swarm.models = torch.stack(run(program, swarm.n).results)
    swarm.world.steps += 1


FIXED: list[Topology] = [Ring(), Torus(), Complete(), Star()]
LOSSES: list[tuple[Memory, bool, Topology]] = [
    *((memory, False, topology) for memory in (NoMemory(), ErrorFeedback()) for topology in (*FIXED, Matching())),
    *((Difference(), True, topology) for topology in FIXED),
]


@pytest.mark.parametrize(("memory", "copies", "topology"), LOSSES, ids=lambda v: getattr(v, "id", None))
def test_those_that_are_left_keep_their_mean(memory: Memory, copies: bool, topology: Topology) -> None:
    """W is symmetric, so what i no longer takes from j is what j no longer takes from i."""
    swarm = apart(Mix(Channel(ScaledSign(), memory), topology, 0.3, copies=copies), normal(8, 40))
    for t in range(3):
        step(swarm, 0.1 * normal(8, 40, seed=10 + t), set())
    for gone in ({5}, {5, 2}, {5, 2, 3}):
        left = [rank for rank in range(8) if rank not in gone]
        for t in range(3):
            updates = 0.1 * normal(8, 40, seed=20 + t)
            before = swarm.models[left]
            step(swarm, updates, gone)
            due = (before + updates[left]).mean(0)
            assert torch.allclose(swarm.models[left].mean(0), due, rtol=0, atol=1e-12)
            assert not torch.allclose(swarm.models[left], before + updates[left], atol=1e-3)  # and they do talk


def test_nobody_is_left_to_talk_to() -> None:
    """A rank whose neighbours are all gone goes on alone."""
    swarm = apart(Mix(Channel(ScaledSign(), ErrorFeedback()), Ring(), 0.3), normal(4, 40))
    models, updates = swarm.models, normal(4, 40, seed=1)
    step(swarm, updates, {1, 3})
    assert torch.equal(swarm.models[0], models[0] + updates[0])
