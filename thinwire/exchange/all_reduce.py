"""All-reduce: payloads are summed on the wire. Only linear compressors can: Q(a) + Q(b) must decode to a + b.

Sends 2 (n-1)/n of a body a step and rank. The mean of n ranks is the sum divided by n.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel
from thinwire.core.compressor import scheme
from thinwire.core.exchange import Exchange
from thinwire.core.payload import Payload

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.comm.base import Comm
    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class AllReduce(Exchange):
    """The mean over all ranks through a linear compressor."""

    name: ClassVar[str] = "all-reduce"
    channel: Channel = field(default_factory=lambda: Channel(Identity()))

    def __post_init__(self) -> None:
        check_channel("AllReduce", self.channel)
        if self.channel.memory.skips:
            raise ValueError(f"{self.channel.memory!r} skips rounds, and AllReduce cannot; write AllGather(...)")
        if not self.channel.encoder.linear:
            raise ValueError(
                f"AllReduce sums payloads on the wire, and {self.channel.compressor.id} is not linear; "
                f"write AllGather({self.channel!r})"
            )

    @property
    def channels(self) -> tuple[Channel, ...]:
        """One hop."""
        return (self.channel,)

    def init(self, layout: Layout, comm: Comm, device: torch.device | None = None) -> State:
        """The channel's memory."""
        return self.channel.init(torch.zeros(layout.numel, device=device))

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        payload = self.channel.send(x, state, ctx)
        assert payload is not None
        total = await ctx.comm.all_reduce(payload.body.view(torch.float32))
        summed = Payload.new(payload.body.numel(), x.device)
        summed.body.copy_(total.view(torch.uint8))
        compressor = self.channel.encoder
        out = torch.zeros(ctx.layout.numel, device=x.device)
        compressor.decode_add(
            summed.seal(scheme(compressor, ctx.layout), ctx.key, crc=False), ctx.layout, out, 1.0 / ctx.comm.size
        )
        return self.channel.memory.receive(out, state)
