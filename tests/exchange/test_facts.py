"""Facts: what an exchange or a memory says about itself, and that nobody asks for its class instead."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, get_args

import pytest
import torch
from battery import INSTANCES, LAYOUT, vector
from nets import SYNCHRONOUS
from torch import Tensor

from thinwire import Channel, Comm, Context, Key, Layout
from thinwire.comm.clock import VirtualClock
from thinwire.compressors import DctTopK, Identity, Natural, Qsgd, RandomK
from thinwire.core.compressor import Compressor
from thinwire.core.exchange import Exchange, Scope
from thinwire.core.memory import Memory, NoMemory
from thinwire.core.method import METHODS
from thinwire.core.slots import Slot
from thinwire.core.types import State
from thinwire.exchange import AllGather, AllReduce, Hierarchical, Marina, MeanOfSenders, Mix, PowerSgd
from thinwire.exchange.wrapper import Wrapper
from thinwire.kernels.base import TAME
from thinwire.lab.member import Member
from thinwire.memory import Difference, ErrorFeedback, Lazy, LocalMomentum, MomentumCorrection, Velocity

ROOT = Path(__file__).parents[2] / "thinwire"
FACTS = {name for name, what in vars(Exchange).items() if isinstance(what, property)} - {"channels"}
MEMORIES: list[Memory] = [
    NoMemory(),
    Difference(),
    ErrorFeedback(),
    Lazy(),
    LocalMomentum(),
    MomentumCorrection(),
    Velocity(),
]


def made(name: str) -> Exchange:
    return METHODS[name]().exchange


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_states_its_facts(name: str) -> None:
    exchange, layout = made(name), Layout.flat(1000)
    others = {"hops", "plain", "scope", "cannot_drop", "limit"}
    kinds = {fact: type(getattr(exchange, fact)) for fact in FACTS - others}
    assert set(kinds.values()) == {bool}, kinds
    assert exchange.scope in get_args(Scope)
    gossips = exchange.scope == "neighbours"
    assert gossips == bool(exchange.edges(8)) == (not exchange.agrees)
    if not gossips:
        assert exchange.cannot_drop == "write deepsqueeze(), or d_psgd()"
        assert not any(getattr(exchange, fact) for fact in ("before_step", "pulls", "one_piece"))
        assert exchange.asynchronous == exchange.served == (exchange.scope == "server")
    assert exchange.carries_nan == (exchange == AllReduce())
    exchange.check(8)
    if any(exchange.init(layout, Comm(rank, 8)) for rank in range(8)):
        assert exchange.remembers
    assert exchange.plain.scope == ("everybody" if exchange.served else exchange.scope)
    assert exchange.plain.one_piece == exchange.one_piece
    assert (exchange.penalty(0, 8) > 0) == exchange.pulls


def test_who_is_special() -> None:
    """Facts that few have, by the methods that have them."""
    held = {
        fact: {name for name in METHODS if getattr(made(name), fact)}
        for fact in ("one_piece", "pulls", "asynchronous", "before_step")
    }
    assert held["one_piece"] == held["pulls"] == {"d-admm", "edge-admm"}
    admms = {"ad-admm", "async-admm", "consensus-admm"}
    served = {"asgd", "asylpg", "backup-workers", "dbpg", "dc-asgd", "r2sp", "softsync", "spy", "ssp"} | admms
    served |= {"async-diloco", "eamsgd-async", "easgd-async"}
    assert held["asynchronous"] == {"ad-psgd"} | served
    assert {name for name in METHODS if made(name).bounded} == {"dbpg", "ssp"} | admms
    assert {name for name in METHODS if made(name).local_steps} == {"eamsgd-async", "easgd-async"} | admms
    ways = {"asgd", "async-diloco", "backup-workers", "r2sp", "softsync", "ssp"}
    assert {name for name in METHODS if made(name).takes_ways} == ways
    assert held["before_step"] == {"ad-psgd", "d-psgd"}
    assert not made("sgd").measurable
    assert made("qsgd").measurable


def test_a_plain_sum_is_float32_without_memory() -> None:
    assert AllReduce().carries_nan
    assert not AllReduce(wire="bf16").carries_nan
    assert not AllReduce(Channel(RandomK())).carries_nan
    assert not AllReduce(Channel(Identity(), Velocity())).carries_nan


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: memory.name)
def test_memories(memory: Memory) -> None:
    assert memory.remembers == (memory != NoMemory())
    assert memory.predicts == (type(memory) in (Difference, Lazy))
    assert all(slot.replicated for slot in memory.receiver_slots().values())
    assert memory.for_models == (type(memory) in (NoMemory, ErrorFeedback, Difference))
    assert memory.settles == (type(memory) in (Difference, Lazy))
    if memory.settles and memory.for_models:
        assert {*memory.slots()} == {*memory.receiver_slots()} == {"shift"}
    assert not memory.plain.predicts


def test_a_mean_of_senders_takes_any_memory_without_a_receiver() -> None:
    exchange = MeanOfSenders(Channel(DctTopK(), MomentumCorrection()))
    assert exchange.plain == AllReduce(Channel(Identity(), Velocity()))
    for memory in (Difference(), Lazy()):
        with pytest.raises(ValueError, match="has a half at the receiver"):
            MeanOfSenders(Channel(DctTopK(), memory))


def test_what_is_whole() -> None:
    whole: list[Memory] = [NoMemory(), Difference(), ErrorFeedback()]
    part: list[Memory] = [
        Difference(0.5),
        ErrorFeedback(0.2, 1.0),
        ErrorFeedback(1.0, 0.9),
        LocalMomentum(),
        Velocity(),
    ]
    assert all(memory.whole for memory in whole)
    assert not any(memory.whole for memory in part)


@dataclass(frozen=True)
class Thin(Wrapper):
    """Adds nothing."""

    name: ClassVar[str] = "thin"
    inside: Exchange

    @property
    def inner(self) -> Exchange:
        return self.inside

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        return self.inside.slots(layout, comm)

    def span(self, name: str, layout: Layout, comm: Comm) -> tuple[int, int]:
        return self.inside.span(name, layout, comm)

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        return await self.inside(x, state, ctx)


@pytest.mark.parametrize("name", list(METHODS))
def test_a_wrapper_hands_on_every_fact(name: str) -> None:
    inside = made(name)
    outside = Thin(inside)
    for fact in FACTS:
        assert getattr(outside, fact) == getattr(inside, fact), fact
    for n in (4, 8):
        assert outside.edges(n) == inside.edges(n)
        assert outside.groups(n) == inside.groups(n)
        assert outside.penalty(1, n) == inside.penalty(1, n)
    assert outside.rounds() == tuple((share, Thin(kind)) for share, kind in inside.rounds())
    x, layout = torch.arange(100.0), Layout.flat(100)
    ours, theirs = outside.init(layout, Comm(0, 8)), inside.init(layout, Comm(0, 8))
    outside.start(x, ours)
    inside.start(x, theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_wrapper_forgets_none() -> None:
    """What `Exchange` gains as a fact, `Wrapper` must hand on."""
    own = {name for name in vars(Exchange) if not name.startswith("_")}
    left = {
        "channels",
        "slots",
        "span",
        "cover",
        "init",
        "rescale",
    }  # about the state, which is its own
    assert own - left == {name for name in vars(Wrapper) if not name.startswith("_")} - {"inner"}


def test_wrappers_of_the_library() -> None:
    for outer in (AllReduce(), AllGather(Channel(Qsgd(bits=4), ErrorFeedback())), PowerSgd()):
        wrapped = Hierarchical(outer, 2)
        assert all(getattr(wrapped, fact) == getattr(outer, fact) for fact in FACTS - {"plain"})
        assert wrapped.plain == AllReduce()
    marina = Marina(Hierarchical(AllGather(Channel(Natural())), 2))
    assert marina.remembers
    assert marina.groups(4) == marina.changes.groups(4)
    with pytest.raises(ValueError, match="cannot cut 5 ranks"):
        marina.check(5)
    with pytest.raises(ValueError, match="leaves each a model of its own"):
        Hierarchical(Thin(Mix()), 2)
    with pytest.raises(ValueError, match="gives no mean or keeps a state"):
        Marina(Thin(Mix()))


def classes_asked_for(path: Path) -> set[str]:
    """Names of exchanges and memories that stand in an `isinstance` of this file."""
    tree = ast.parse(path.read_text())
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("thinwire.exchange", "thinwire.memory", "thinwire.core.memory"))
        for alias in node.names
    }
    return {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        for name in ast.walk(node.args[1])
        if isinstance(name, ast.Name) and name.id in ours
    }


def test_nobody_asks_for_the_class_of_an_exchange_or_a_memory() -> None:
    """Where this fails, ask for a fact of `Exchange` or `Memory`, or add one there (and in `Wrapper`)."""
    for folder in ("exchange", "memory", "engine"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not classes_asked_for(path), path


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda one: one.id)
def test_a_compressor_keeps_tame_vectors_finite(instance: Compressor) -> None:
    x, key = vector(LAYOUT.numel, seed=3), Key(seed=7)
    x *= 0.99 * TAME / x.abs().max()
    got = instance.decode(instance.encode(x, LAYOUT, key), LAYOUT, key=key)
    assert got.isfinite().all()


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_an_exchange_keeps_vectors_up_to_its_limit_finite_and_memories_too(name: str) -> None:
    exchange, clock, layout = METHODS[name]().exchange, VirtualClock(2), Layout(("w", "b"), ((40, 50), (48,)))
    results: list[Tensor] = []

    async def life(rank: int) -> None:
        member = Member(exchange, layout, clock.comm(rank), seed=5, start=torch.zeros(layout.numel))
        for step in range(2):
            x = vector(layout.numel, seed=10 * step + rank)
            results.append(await member.step(x * (0.99 * exchange.limit / x.abs().max()), step))
        results.extend(member.state.values())

    for rank in range(2):
        clock.spawn(rank, life(rank))
    clock.run()
    assert exchange.limit > 0
    assert all(bool(x.isfinite().all()) for x in results)
