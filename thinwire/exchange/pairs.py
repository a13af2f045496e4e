"""Pairs: one rank asks one neighbour, and both move to the middle. AD-PSGD does this beside training.

The graph has two sides. A rank of the active side sends its model to a random neighbour; one of the passive side
answers with its own. With m_i and m_j what both decode of the two messages:

    x_i = x_i + (m_j - m_i) / 2,    x_j = x_j + (m_i - m_j) / 2

so that x_i + x_j stays the same, whatever the compressor loses; without loss both hold the mean. Active ranks only
ask and passive ranks only answer, so nobody waits for a rank that waits. A passive rank answers and moves in one act:
of two that ask at once, the second meets the model that the first has moved.

`ask` and `answer` are the halves, which `thinwire.engine.neighbours` runs beside training. A call is a round
in step: every active rank asks once, and passive ranks answer in the order of the ranks that ask. All draw the
choices from the key, so each knows who asks whom.

An empty message says that no more will come, and one of a single byte only that its sender is still there.

Reference: Lian, Zhang, Zhang, Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018,
arXiv 1710.06952, algorithm 1 and the two sides of its implementation.

Departs from the paper: messages may be compressed. What C(x_i) loses is lost, as models do not tend to zero, so this
is for mild compressors, or RandomK(scaled=False), where both ends average the same places.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Protocol, final

import torch

from thinwire.core.channel import Channel, check_channel
from thinwire.core.payload import Payload
from thinwire.exchange.gossip import Gossip, check_graph, identity, weighted
from thinwire.kernels import philox
from thinwire.topology.base import Topology
from thinwire.topology.mixing import colouring
from thinwire.topology.ring import Ring

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, Key, State

CHOICE = 255  # the hop that no payload has: its noise chooses the neighbour


class Model(Protocol):
    """What the halves need from a model that others may change meanwhile."""

    def snapshot(self) -> Tensor:
        """A copy of the model."""

    def held(self) -> AbstractContextManager[Tensor]:
        """The model itself, to change in place; nobody else changes it until the end of the block."""


@final
@dataclass(frozen=True)
class Pairs(Gossip):
    """Half way towards a random neighbour, on a graph of two sides."""

    name: ClassVar[str] = "pairs"
    channel: Channel = field(default_factory=identity)
    topology: Topology = field(default_factory=Ring)

    def __post_init__(self) -> None:
        check_channel("Pairs", self.channel)
        check_graph("Pairs", self.topology)
        if self.channel.memory.remembers:
            raise ValueError(
                f"Pairs meet at random, and {self.channel.memory!r} remembers what was sent last; "
                f"write Pairs(Channel({self.channel.compressor!r}))"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def before_step(self) -> bool:
        """Yes, as in the paper: models are averaged while the gradient is computed, then the step is added."""
        return True

    @property
    def asynchronous(self) -> bool:
        """Yes: the halves run in threads of their own."""
        return True

    @property
    def plain(self) -> Pairs:
        """The same graph in float32."""
        return Pairs(topology=self.topology)

    def check(self, n: int) -> None:
        """Refuse a graph that changes, has directions or does not have two sides."""
        super().check(n)
        if max(colouring(self.topology, n)) < 2:
            return
        if isinstance(self.topology, Ring):
            write = "an even number of ranks, or topology='star'"
        else:
            write = "topology='star'" if n % 2 else "topology='ring'"
        raise ValueError(
            f"a {self.topology.id} of {n} is not bipartite: neighbours would be on one side; write {write}"
        )

    def active(self, rank: int, n: int) -> bool:
        """Whether a rank asks; otherwise it answers. Rank 0 answers."""
        return _sides(self.topology, n)[rank] == 1

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The model after one round in step."""
        me, n = ctx.comm.rank, ctx.comm.size
        near, model = self.topology.around(me, n).peers, _Own(x.clone())
        if self.active(me, n):
            peer = self.choose(ctx.key, me, near)
            await self.ask(model, peer, replace(ctx, key=self.on_edge(ctx.key, me, peer, n)))
        else:
            for peer in near:
                if self.choose(ctx.key, peer, self.topology.around(peer, n).peers) == me:
                    await self.answer(model, peer, replace(ctx, key=self.on_edge(ctx.key, me, peer, n)))
        return model.x

    async def ask(self, model: Model, peer: int, ctx: Context) -> None:
        """The active half: send the model to `peer`, receive its own, and go half way. Steps taken meanwhile stay."""
        mine = self._message(model.snapshot(), ctx)
        await ctx.comm.send(peer, mine.data)
        _, data = await ctx.comm.recv(peer)
        with model.held() as x:
            self._meet(x, mine, data, ctx)

    async def answer(self, model: Model, peer: int, ctx: Context) -> bool:
        """The passive half, for one message from `peer`; False if that was its last."""
        _, data = await ctx.comm.recv(peer)
        if data.numel() <= 1:
            return bool(data.numel())
        with model.held() as x:
            mine = self._message(x, ctx)
            self._meet(x, mine, data, ctx)
        await ctx.comm.send(peer, mine.data)
        return True

    async def greet(self, peer: int, ctx: Context, *, last: bool = False) -> None:
        """Tell `peer` that this rank is still there, or that it asks no more."""
        await ctx.comm.send(peer, torch.zeros(0 if last else 1, dtype=torch.uint8))

    def choose(self, key: Key, rank: int, near: tuple[int, ...]) -> int:
        """The neighbour, of those given, that an active rank asks in the step of the key: the same on all ranks."""
        word = philox.first(key.fold(rank=rank, bucket=0, offset=0, hop=CHOICE))
        return near[word * len(near) >> 32]

    def on_edge(self, key: Key, i: int, j: int, n: int) -> Key:
        """The key of what i and j send each other: both know it, and no other edge has it."""
        numbers = _numbers(self, n)
        return key.fold(bucket=key.bucket * len(numbers) + numbers[min(i, j), max(i, j)])

    def _message(self, x: Tensor, ctx: Context) -> Payload:
        payload = self.channel.send(x.float(), {}, ctx)
        assert payload is not None
        return payload

    def _meet(self, x: Tensor, mine: Payload, data: Tensor, ctx: Context) -> None:
        """Move half way, in place."""
        messages = {0: mine, 1: Payload(data.to(x.device))}
        x += weighted(self.channel, messages, {0: -0.5, 1: 0.5}, x, ctx)


@dataclass
class _Own:
    """A model that is not shared."""

    x: Tensor

    def snapshot(self) -> Tensor:
        return self.x

    def held(self) -> AbstractContextManager[Tensor]:
        return nullcontext(self.x)


@lru_cache(maxsize=64)
def _sides(topology: Topology, n: int) -> list[int]:
    return colouring(topology, n)


@lru_cache(maxsize=64)
def _numbers(exchange: Pairs, n: int) -> dict[tuple[int, int], int]:
    return {edge: number for number, edge in enumerate(exchange.edges(n))}
