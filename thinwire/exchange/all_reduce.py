"""All-reduce: bodies are summed on the wire. It takes linear compressors only: Q(a) + Q(b) must decode to a + b.

Sends 2 (n-1)/n of a body per rank and step, in float32 or, with `wire`, in 16 bits per element. Every rank divides by
n before the sum, so that 16-bit sums overflow no sooner than their mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel
from thinwire.core.compressor import scheme
from thinwire.core.config import check_choice
from thinwire.core.exchange import Exchange, part
from thinwire.core.outline import Code, Phase, Reduce, Size
from thinwire.core.payload import Payload

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, Layout, State

FP16 = 2.0**15
WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@final
@dataclass(frozen=True)
class AllReduce(Exchange):
    """The mean over all ranks through a linear compressor, summed in the numbers of `wire`."""

    name: ClassVar[str] = "all-reduce"
    channel: Channel = field(default_factory=lambda: Channel(Identity()))
    wire: Literal["fp32", "bf16", "fp16"] = "fp32"

    def __post_init__(self) -> None:
        check_channel("AllReduce", self.channel)
        check_choice("AllReduce", "wire", self.wire, tuple(WIRE))
        if self.channel.memory.skips:
            raise ValueError(f"{self.channel.memory!r} skips rounds, and AllReduce cannot; write AllGather(...)")
        if not self.channel.encoder.linear:
            raise ValueError(
                f"AllReduce sums payloads on the wire, and {self.channel.compressor.id} is not linear; "
                f"write AllGather({self.channel!r})"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def plain(self) -> AllReduce:
        """Float32, with what the memory keeps of vectors that are sent whole."""
        return AllReduce(Channel(Identity(), self.channel.memory.plain))

    @cached_property
    def bare(self) -> bool:
        """Whether the vector itself is the body."""
        return self.channel.compressor == Identity() and not self.channel.memory.remembers

    def halves(self, shape: tuple[int, ...]) -> bool:
        """With 16 bits on the wire everything is."""
        return self.wire != "fp32" or super().halves(shape)

    @property
    def carries_nan(self) -> bool:
        """Where vectors are summed as they are."""
        return self.bare and self.wire == "fp32"

    @property
    def limit(self) -> float:
        """Half of what sums of 16 bits hold; 0 if a memory adds to the vector, and nobody knows how much."""
        if self.wire != "fp16":
            return super().limit
        return 0.0 if self.remembers else FP16

    @property
    def measurable(self) -> bool:
        """No: what a linear compressor loses is the same part of every rank's vector, and of their sum."""
        return False

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        if self.bare:
            x = x if x.dtype == torch.float32 else x.float()
            if self.wire == "fp32":  # small buckets feel every coroutine and every call of torch
                return await ctx.comm.all_reduce(x.div_(ctx.comm.size))
            return await self._mean(x, ctx)
        payload = self.channel.send(x, part(state, "send."), ctx)
        assert payload is not None
        total = Payload.new(payload.body.numel(), x.device)
        total.body.copy_((await self._mean(payload.body.view(torch.float32), ctx)).view(torch.uint8))
        total.seal(scheme(self.channel.encoder, ctx.layout), ctx.key, checksum=False)
        return self.channel.receive([total.data], part(state, "recv."), ctx)

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """A sum of bodies, and a cast before and after it where the wire has 16 bits."""
        floats = layout.numel if self.bare else self.channel.encoder.nbytes(layout) // 4
        summed: list[Phase] = [Reduce(floats * WIRE[self.wire].itemsize)]
        if self.wire != "fp32":
            summed = [Code("encode", self.wire, floats), *summed, Code("decode", self.wire, floats)]
        if self.bare:
            return summed
        coder = self.channel.encoder.id
        return [Code("encode", coder, layout.numel), *summed, Code("decode", coder, layout.numel)]

    async def _mean(self, x: Tensor, ctx: Context) -> Tensor:
        x.div_(ctx.comm.size)
        if self.wire == "fp32":  # each call of torch lets another thread have the interpreter's lock
            return await ctx.comm.all_reduce(x)
        with ctx.comm.rooms.lend(x.numel(), WIRE[self.wire], x.device) as short:
            return x.copy_(await ctx.comm.all_reduce(short.copy_(x)))  # into memory that is there already
