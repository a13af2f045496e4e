"""Admm: ranks take turns to minimise their loss plus a pull to their neighbours. D-ADMM and ADMM over edges.

Sends x_i once per round to each neighbour: 2 |E| messages in all. With N_i the neighbours of rank i, D_i their
number, `earlier` those whose turn comes before that of i, and f_i the loss on its data:

    v_i     = gamma_i - rho (sum_{j earlier} x_j(new) + sum_{j later} x_j(old))
    x_i     = argmin f_i(x) + v_i'x + (D_i rho / 2) |x|^2
    gamma_i = gamma_i + rho sum_{j in N_i} (x_i - x_j)

Turns by colour, where neighbours have different colours, give D-ADMM; turns by rank number give ADMM over edges.
There every edge j < i has a dual l_ji, and x_i minimises, with P the earlier and S the later neighbours,

    f_i(x) + rho/2 sum_P |x_j - x - l_ji / rho|^2 + rho/2 sum_S |x - x_j - l_ij / rho|^2,    l_ji -= rho (x_j - x_i)

Proof that the two are the same: both squares have the x-terms rho/2 |x|^2 - rho x_j'x, with l_ji'x in P and -l_ij'x
in S, so gamma_i is sum_P l_ji - sum_S l_ij; and both duals, with these signs, change it by rho (x_i - x_j).

A round has three parts, so that every message is received in its own round and no send waits for the next one:

    begin   receive from the earlier neighbours, who are in `tell`
    tell    send to the later neighbours, who are in `begin` of the same round
    hear    send to the earlier neighbours and receive from the later ones, all of whom are in `hear` or will be

Wherever x_j stands it is what is decoded from rank j, including this rank itself, so that the gamma_i sum to zero;
they are added up in float64, so that they still do after many rounds.

State, zero at the start: "gamma"; "linear", which is v_i; and "heard", which between rounds is
sum_{j later} (x_j - x_i), and within a round sum_{j earlier} x_j.

Reference: Mota, Xavier, Aguiar, Puschel, "D-ADMM: a communication-efficient distributed algorithm for separable
optimization", IEEE Transactions on Signal Processing 2013, arXiv 1202.2805. Wei, Ozdaglar, "Distributed alternating
direction method of multipliers", CDC 2012.

Departs from the papers: the argmin is that of a few optimizer steps; messages may be compressed (any channel without
a memory), which the papers do not consider. `wire="fp64"` sends float64 as it is, for tests and small convex
problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel
from thinwire.core.config import check_choice
from thinwire.core.slots import SUM, Slot
from thinwire.exchange.gossip import check_fixed, check_graph, identity, weighted
from thinwire.exchange.proximal import Proximal
from thinwire.topology.base import Topology
from thinwire.topology.mixing import colouring
from thinwire.topology.ring import Ring

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Layout, State

Order = Literal["colour", "index"]


class Sides(NamedTuple):
    """The neighbours of a rank whose turns come before its own, and those whose turns come after."""

    earlier: tuple[int, ...]
    later: tuple[int, ...]


@final
@dataclass(frozen=True)
class Admm(Proximal):
    """ADMM on a graph, with turns by `order`; `rho` is how hard a neighbour pulls."""

    name: ClassVar[str] = "admm"
    channel: Channel = field(default_factory=identity)
    topology: Topology = field(default_factory=Ring)
    rho: float = 0.5
    order: Order = "colour"
    wire: Literal["fp32", "fp64"] = "fp32"

    def __post_init__(self) -> None:
        check_channel("Admm", self.channel)
        check_graph("Admm", self.topology)
        check_choice("Admm", "order", self.order, ("colour", "index"))
        check_choice("Admm", "wire", self.wire, ("fp32", "fp64"))
        if not (self.rho > 0 and math.isfinite(self.rho)):
            raise ValueError(f"Admm(rho={self.rho}) does not pull; write rho=0.5, or another number above 0")
        if self.channel.memory.remembers:
            raise ValueError(
                f"Admm sends whole models; got {self.channel.memory!r}: "
                f"write Admm(Channel({self.channel.compressor!r}))"
            )
        if self.wire == "fp64" and self.channel.encoder != Identity():
            raise ValueError(
                f'Admm(wire="fp64") sends models as they are; got {self.channel.compressor!r}: write wire="fp32"'
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def plain(self) -> Admm:
        """The same turns in float32."""
        return Admm(topology=self.topology, rho=self.rho, order=self.order)

    @property
    def cannot_drop(self) -> str:
        """No: the duals of an edge belong to both of its ends."""
        return "write d_psgd(every=...), which keeps nothing about its neighbours"

    def check(self, n: int) -> None:
        """Refuse a graph whose edges change or have a direction."""
        if self.topology.directed:
            raise ValueError(
                f"ADMM talks both ways along an edge, and {self.topology!r} is directed; write topology=Ring()"
            )
        check_fixed("ADMM", self.topology, n)

    def penalty(self, rank: int, n: int) -> float:
        """D_i rho."""
        return self.rho * len(self.topology.around(rank, n).peers)

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """Zeros, since all models are equal at the start."""
        exact = Slot(on_resize="reset", dtype=SUM)
        return {"gamma": exact, "linear": Slot(on_resize="reset"), "heard": exact}

    async def begin(self, x: Tensor, state: State, ctx: Context) -> None:
        """Compute v_i, once the earlier neighbours have moved."""
        near = self._sides(ctx)
        early = self._sum(await self._swap(None, (), near.earlier, x, ctx), x, ctx)
        late = state["heard"] + len(near.later) * x
        state["linear"].copy_(state["gamma"] - self.rho * (early + late))
        state["heard"].copy_(early)

    async def tell(self, x: Tensor, state: State, ctx: Context) -> None:
        """Send x_i to the later neighbours."""
        await self._swap(self._message(x, ctx), self._sides(ctx).later, (), x, ctx)

    async def hear(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """Update gamma_i, once the later neighbours have moved; x_i stays."""
        near = self._sides(ctx)
        message = self._message(x, ctx)  # the same bits as in `tell`: there is no memory, and the key is the same
        mine = self._sum({ctx.comm.rank: message}, x, ctx)
        late = self._sum(await self._swap(message, near.earlier, near.later, x, ctx), x, ctx)
        apart = (len(near.earlier) * mine - state["heard"]) + (len(near.later) * mine - late)
        state["gamma"].add_(apart, alpha=self.rho)
        state["heard"].copy_(late - len(near.later) * x)
        return x

    def _sides(self, ctx: Context) -> Sides:
        return sides(self.topology, ctx.comm.size, self.order)[ctx.comm.rank]

    async def _swap(
        self, message: Tensor | None, peers: Sequence[int], sources: Sequence[int], x: Tensor, ctx: Context
    ) -> dict[int, Tensor]:
        """What the sources sent. Where there is no message, an unset one of its size tells how much will arrive."""
        known = self.wire == "fp64" or self.channel.predictable
        if message is None:
            size = 8 * x.numel() if self.wire == "fp64" else self.channel.nbytes(ctx.layout)
            message = torch.empty(size if known else 0, dtype=torch.uint8, device=x.device)
        return await ctx.comm.swap(message, peers, sources=sources, equal=known)

    def _message(self, x: Tensor, ctx: Context) -> Tensor:
        if self.wire == "fp64":
            return x.double().view(torch.uint8)
        payload = self.channel.send(x.float(), {}, ctx)
        assert payload is not None
        return payload.data

    def _sum(self, messages: dict[int, Tensor], x: Tensor, ctx: Context) -> Tensor:
        """The sum of what is decoded, in rank order and in float64."""
        total = torch.zeros_like(x, dtype=SUM)
        if self.wire == "fp64":
            for j in sorted(messages):
                total += messages[j].clone().view(torch.float64)
            return total
        payloads = {j: ctx.payload(data) for j, data in sorted(messages.items())}
        return weighted(self.channel, payloads, dict.fromkeys(payloads, 1.0), total, ctx)


@lru_cache(maxsize=256)
def sides(topology: Topology, n: int, order: Order) -> list[Sides]:
    """Every rank's neighbours before and after it.

    >>> sides(Ring(), 6, "colour")[:2], sides(Ring(), 6, "index")[1]
    ([Sides(earlier=(), later=(1, 5)), Sides(earlier=(0, 2), later=())], Sides(earlier=(0,), later=(2,)))
    """
    turn = colouring(topology, n) if order == "colour" else list(range(n))
    peers = [topology.around(i, n).peers for i in range(n)]
    return [
        Sides(
            tuple(j for j in peers[i] if turn[j] < turn[i]),
            tuple(j for j in peers[i] if turn[j] > turn[i]),
        )
        for i in range(n)
    ]
