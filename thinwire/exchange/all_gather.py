"""All-gather: every rank broadcasts its payload; every rank decodes them all, in rank order.

Sends n-1 payloads per rank and step. Works for every compressor; all ranks add the same floats in the same order,
so replicas stay bitwise equal. A rank whose memory skips the round sends nothing and counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel, empty
from thinwire.core.exchange import Exchange, part
from thinwire.core.outline import Code, Gather, Phase, Size
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.reduce import REDUCE, Reduce, check_reduce

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class AllGather(Exchange):
    """The mean (or the majority) over all ranks of what they decode from each other."""

    name: ClassVar[str] = "all-gather"
    channel: Channel
    reduce: Reduce = "mean"

    def __post_init__(self) -> None:
        check_channel("AllGather", self.channel)
        check_reduce("AllGather", self.reduce)

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def keeps_scale(self) -> bool:
        """Not where it is a vote."""
        return self.reduce == "mean" and super().keeps_scale

    @property
    def plain(self) -> Exchange:
        """A sum of float32, with what the memory keeps of vectors that are sent whole."""
        return AllReduce(Channel(Identity(), self.channel.memory.plain))

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        arrived = await self.gather(x, state, ctx)
        out = x if x.dtype == torch.float32 else None
        return REDUCE[self.reduce](self.channel.receive(arrived, part(state, "recv."), ctx, out=out))

    async def gather(self, x: Tensor, state: State, ctx: Context) -> list[Tensor]:
        """The first half: what `x` becomes is sent, and everybody's messages are taken, not decoded."""
        payload = self.channel.send(x, part(state, "send."), ctx)
        mine = empty(x) if payload is None else payload.data
        sizes = (self.channel.nbytes(ctx.layout),) * ctx.comm.size if self.channel.sends_always else None
        return await ctx.comm.all_gather(mine, sizes=sizes, exact=self.channel.predictable)

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """One payload to everybody, and n to decode."""
        coder, d = self.channel.encoder.id, layout.numel
        return [Code("encode", coder, d), Gather(size(self.channel, layout)), Code("decode", coder, n * d)]
