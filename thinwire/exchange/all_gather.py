"""All-gather: every rank broadcasts its payload; every rank decodes them all, in rank order.

Sends (n-1) payloads a step and rank. Works for every compressor; all ranks add the same floats in the same order,
so replicas stay bitwise equal. A rank whose memory skips the round sends nothing and counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.channel import Channel, check_channel
from thinwire.core.exchange import Exchange

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

    def __post_init__(self) -> None:
        check_channel("AllGather", self.channel)

    def init(self, layout: Layout, comm: Comm, device: torch.device | None = None) -> State:
        """The channel's memory."""
        return self.channel.init(torch.zeros(layout.numel, device=device))

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        payload = self.channel.send(x, state, ctx)
        mine = torch.empty(0, dtype=torch.uint8, device=x.device) if payload is None else payload.data
        equal = self.channel.encoder.fixed_size and not self.channel.memory.skips
        return self.channel.receive(await ctx.comm.all_gather(mine, equal=equal), state, ctx)
