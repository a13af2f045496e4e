"""Gossip: exchanges in which a rank talks to its neighbours on a graph, about models.

    x      the model before the local step, `ctx.before`
    x_half the model after it, what the exchange is given; x_half - x is the local update, -lr g for plain SGD

The result is the model to go on with. Ranks differ; every paper keeps their mean, or says why it moves.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import combinations
from typing import TYPE_CHECKING

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel
from thinwire.core.exchange import Exchange
from thinwire.core.outline import Code, Phase, Size, Swap
from thinwire.core.payload import Payload
from thinwire.topology.base import Topology
from thinwire.topology.mixing import check_topology, matrices
from thinwire.topology.refusals import TOLERANCE

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.exchange import Scope
    from thinwire.core.types import Context, Layout
    from thinwire.topology.base import Around


class Gossip(Exchange):
    """Base of the exchanges on a graph. Subclasses have a field `topology`."""

    topology: Topology

    @property
    def scope(self) -> Scope:
        """A rank waits for its neighbours alone."""
        return "neighbours"

    @property
    def agrees(self) -> bool:
        """No: it would need all ranks to meet. A model that is not finite is an error."""
        return False

    @property
    def cannot_drop(self) -> str:
        """A neighbour may be dropped, unless a subclass says why not."""
        return ""

    @property
    @abstractmethod
    def plain(self) -> Exchange:
        """The exchange for tensors that travel uncompressed: the same graph in float32."""

    def check(self, n: int) -> None:
        """Refuse a number of ranks that the graph or the method does not fit."""
        check_topology(self.topology, n)
        check_doubly(self.topology, n)

    def edges(self, n: int) -> list[tuple[int, int]]:
        """Every pair of `n` ranks that may ever talk to each other."""
        period = self.topology.period(n)
        if period is None:
            return list(combinations(range(n), 2))
        rows = [(i, self.topology.around(i, n, step)) for step in range(period) for i in range(n)]
        return sorted({(min(i, j), max(i, j)) for i, row in rows for j in row.sources})

    def tail(self, n: int) -> int:
        """Bytes that follow a payload among `n` ranks."""
        return 0

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """A payload to the neighbours; theirs and the own one are decoded."""
        if self.pulls or self.asynchronous:  # ranks take turns, or meet by chance
            return super().outline(layout, n, size)
        coder, d, rows = self.channels[0].encoder.id, layout.numel, self.topology.around

        def around(rank: int, round_: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            near = rows(rank, n, round_)
            return near.peers, tuple(near.sources)

        heard = tuple((1 + len(rows(rank, n).sources)) * d for rank in range(n))
        sent = size(self.channels[0], layout) + self.tail(n)
        return [Code("encode", coder, d), Swap(sent, around), Code("decode", coder, heard)]

    def near(self, ctx: Context) -> Around:
        """The neighbours of this rank in this step; the weight of those that are gone falls to this rank."""
        near = self.topology.around(ctx.comm.rank, ctx.comm.size, ctx.key.step)
        gone = ctx.comm.gone
        if not gone:
            return near
        lost = sum(weight for j, weight in near.sources.items() if j in gone)
        alive = {j: weight for j, weight in near.sources.items() if j not in gone}
        return near._replace(own=near.own + lost, sources=alive, peers=tuple(j for j in near.peers if j not in gone))


def check_graph(exchange: str, topology: object) -> None:
    """Refuse what is not a graph."""
    if not isinstance(topology, Topology):
        raise TypeError(f"{exchange}(topology=...) takes a Topology; got {topology!r}: write topology=Ring()")


def check_fixed(what: str, topology: Topology, n: int) -> None:
    """Refuse a graph that changes from step to step or has directions, or a W that does not mix."""
    if topology.period(n) != 1:
        raise ValueError(
            f"{what} keeps a sum over fixed neighbours, and {topology!r} changes its edges; "
            "write topology=Ring(), or deepsqueeze(), which keeps nothing about its neighbours"
        )
    if topology.directed:
        raise ValueError(
            f"{what} needs a symmetric W, and that of {topology!r} is not; write topology=Ring(), or "
            "deepsqueeze() or d_psgd(), which take doubly stochastic ones"
        )
    check_topology(topology, n)


def check_doubly(topology: Topology, n: int) -> None:
    """Refuse a directed W whose rows do not sum to one: mixing would move the mean."""
    for w in matrices(topology, n) if topology.directed else ():
        sums = w.sum(1)
        worst = int((sums - 1).abs().argmax())
        if abs(float(sums[worst]) - 1) > TOLERANCE:
            raise ValueError(
                f"row {worst} of {topology!r} sums to {float(sums[worst]):.3g}: the mean of the models would move; "
                "write sgp(topology=...), which divides by what a one has become"
            )


def identity() -> Channel:
    """Uncompressed float32."""
    return Channel(Identity())


async def trade(channel: Channel, payload: Payload, near: Around, ctx: Context) -> dict[int, Payload]:
    """Send to those that take from this rank; returns what arrived, by rank."""
    arrived = await ctx.comm.swap(payload.data, near.peers, sources=tuple(near.sources), equal=channel.predictable)
    return {j: ctx.payload(data) for j, data in sorted(arrived.items())}


def towards(channel: Channel, messages: dict[int, Payload], near: Around, like: Tensor, ctx: Context) -> Tensor:
    """sum_j W_ij (m_j - m_i) over the neighbours that answered, in the precision of `like`; m_i is among them."""
    weights = {j: weight for j, weight in near.sources.items() if j in messages}
    weights[ctx.comm.rank] = -sum(weights.values())
    return weighted(channel, messages, weights, like, ctx)


def weighted(
    channel: Channel, messages: dict[int, Payload], weights: dict[int, float], like: Tensor, ctx: Context
) -> Tensor:
    """sum_j weight_j decode(m_j), in the precision of `like`."""
    with ctx.clock.span("decode"):
        total = torch.zeros(ctx.layout.numel, device=like.device, dtype=like.dtype)
        for j, payload in messages.items():
            if like.dtype == torch.float32:
                channel.encoder.decode_add(payload, ctx.layout, total, weights[j], key=ctx.key)
            else:
                total += weights[j] * channel.encoder.decode(payload, ctx.layout, key=ctx.key).to(like.dtype)
        return total
