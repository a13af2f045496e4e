"""All-gather: every rank broadcasts its payload; every rank decodes them all, in rank order.

Sends (n-1) payloads a step and rank. Works for every compressor; all ranks add the same floats in the same order,
so replicas stay bitwise equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.channel import Channel
from thinwire.core.exchange import Exchange
from thinwire.core.payload import Payload

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.comm.base import Comm
    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class AllGather(Exchange):
    """The mean over all ranks of what they decode from each other."""

    name: ClassVar[str] = "all-gather"
    channel: Channel

    @property
    def channels(self) -> tuple[Channel, ...]:
        """One hop."""
        return (self.channel,)

    def init(self, layout: Layout, comm: Comm) -> State:
        """The channel's memory."""
        return self.channel.init(torch.zeros(layout.numel))

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        payload = self.channel.send(x, state, ctx)
        assert payload is not None, "a memory that skips rounds needs an exchange that can"
        out = torch.zeros(ctx.layout.numel, device=x.device)
        for data in await ctx.comm.all_gather(payload.data):
            self.channel.encoder.decode_add(Payload(data), ctx.layout, out, 1.0 / ctx.comm.size, key=ctx.key)
        return self.channel.memory.receive(out, state)
