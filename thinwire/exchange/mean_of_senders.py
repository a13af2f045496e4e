"""Mean of senders: an all-gather in which each coefficient is averaged over the ranks that sent it.

Sends n-1 payloads per rank and step. With S_j the ranks whose payload holds coefficient j of an orthonormal basis:

    c_j = (1/|S_j|) sum_{i in S_j} c_ij   (0 where nobody sent it),    out = the vector of c, or its sign

All ranks add the same floats in the same order, so replicas stay bitwise equal.

Reference: Peng, Quesnelle, Kingma, "Decoupled momentum optimization", 2024, arXiv 2411.19870, and the authors' code.

Departs from the code: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.basis import BasisCompressor
from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel
from thinwire.core.exchange import Exchange, part
from thinwire.core.outline import Code, Gather, Phase, Size
from thinwire.exchange.all_reduce import AllReduce

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class MeanOfSenders(Exchange):
    """The mean over those that sent, coefficient by coefficient; with `sign`, only -1, 0 or +1 of each element."""

    name: ClassVar[str] = "mean-of-senders"
    channel: Channel
    sign: bool = False

    def __post_init__(self) -> None:
        check_channel("MeanOfSenders", self.channel)
        if not isinstance(self.channel.compressor, BasisCompressor):  # `open` and `synthesise` are its own
            raise ValueError(
                f"MeanOfSenders counts who sent a coefficient, and {self.channel.compressor.id} has none; "
                "write MeanOfSenders(Channel(DctTopK(), ErrorFeedback()))"
            )
        if self.channel.memory.predicts:
            raise ValueError(
                f"{self.channel.memory!r} has a half at the receiver, which needs the mean over all ranks; "
                "write Channel(..., ErrorFeedback())"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def keeps_scale(self) -> bool:
        """False with `sign`."""
        return not self.sign

    @property
    def plain(self) -> Exchange:
        """A sum of float32, with what the memory keeps of vectors that are sent whole."""
        return AllReduce(Channel(Identity(), self.channel.memory.plain))

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over senders."""
        payload = self.channel.send(x, part(state, "send."), ctx)
        assert payload is not None
        arrived = await ctx.comm.all_gather(payload.data, equal=True)
        with ctx.clock.span("decode"):
            code = self.channel.compressor
            assert isinstance(code, BasisCompressor)
            total, senders = torch.zeros(2, ctx.layout.numel, device=x.device)
            for data in arrived:
                places, values = code.open(data, ctx.layout, ctx.key)
                total[places] += values
                senders[places] += 1
            out = code.synthesise(total / senders.clamp(min=1), ctx.layout)
            return torch.where(out.isnan(), out, out.sign()) if self.sign else out

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """One payload to everybody, and n to decode."""
        coder, d = self.channel.encoder.id, layout.numel
        return [Code("encode", coder, d), Gather(size(self.channel, layout)), Code("decode", coder, n * d)]
