"""Shared scale: ranks first agree on the scales, then add integer symbols, and the sum comes back exactly.

There is one lossy step, whatever the number of ranks n. With s levels and, for each block, a scale N:

    0  x_i is clipped to its own N_i     where the compressor clips, as TernGrad does
    1  N = max_i N_i                     all-reduce of the scales, 4 bytes per block
    2  q_i = Q(x_i) with scale N         cut into n shards, shard j to rank j, b bits per element
    3  t_j = sum_i q_i                   at the owner, in [-n s, n s]: exact
    4  t_j to everybody                  ceil(log2(2 n s + 1)) bits per element: exact
       out = t N / (n s)                 on every rank: the same bits

Blocks are counted from the start of a shard: one that a shard's edge cuts has one scale on either side of it. Where a
tensor has one scale (TernGrad), it is that of the whole tensor, whatever shards it lies in. The compressor must be
one whose symbols are multiples of N/s (`Kind.SIGNED`): Qsgd, TernGrad, IntBlock, LowPrecision.

>>> from thinwire.compressors import Qsgd
>>> SharedScale(Qsgd(bits=4)).sum_width(ranks=8)  # -56 .. 56
7

Reference: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning",
NeurIPS 2017, arXiv 1705.07878: "scaler sharing".

Departs from the paper: its server is spread over the ranks, one shard each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast, final

import torch

from thinwire import kernels
from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.compressors.block import BlockQuantiser, equal_blocks
from thinwire.core.channel import Channel
from thinwire.core.compressor import scheme
from thinwire.core.errors import PayloadError
from thinwire.core.exchange import Exchange
from thinwire.core.outline import Code, Gather, Phase, Reduce, Scatter, Size
from thinwire.core.payload import HEADER, Payload
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.shards import shards
from thinwire.kernels.spec import Kind, Norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.core.types import Context, Layout, State
    from thinwire.exchange.shards import Shard


@final
@dataclass(frozen=True)
class SharedScale(Exchange):
    """The mean over all ranks of what `compressor` makes of their vectors, with scales that all share."""

    name: ClassVar[str] = "shared-scale"
    compressor: BlockQuantiser

    def __post_init__(self) -> None:
        # scales that are given, and fields of symbols, are a BlockQuantiser's own
        if not isinstance(self.compressor, BlockQuantiser) or self.compressor.quant.kind is not Kind.SIGNED:
            raise ValueError(
                f"SharedScale adds integer symbols, and those of {self.compressor!r} do not add to multiples of one "
                f"step; write AllGather(Channel({self.compressor!r})), or SharedScale(Qsgd(bits=4))"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop that loses; the sum comes back exactly."""
        return {"": Channel(self.compressor)}

    @property
    def plain(self) -> Exchange:
        """A sum of float32."""
        return AllReduce()

    def sum_width(self, ranks: int) -> int:
        """Bits of the sum of `ranks` symbols."""
        return (2 * ranks * self.compressor.quant.levels).bit_length()

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        q, n = self.compressor, ctx.comm.size
        cuts = shards(ctx.layout, n)
        with ctx.clock.span("encode"):
            x = x.float()
            found = self._scales(x, cuts, ctx.layout)
        # Not every network's maximum keeps NaN; all keep inf, and no scale is inf.
        top = await ctx.comm.all_reduce(torch.where(found.isnan(), torch.inf, found), "max")
        shared = torch.where(top.isinf(), torch.nan, top)
        scales = self._by_shard(shared, cuts, ctx.layout)

        with ctx.clock.span("encode"):
            sent = [
                q.encode_scaled(x[cut.start : cut.stop], scale, cut.layout, cut.context(ctx).key).data
                for cut, scale in zip(cuts, scales, strict=True)
            ]
        mine = cuts[ctx.comm.rank]
        arrived = await ctx.comm.all_to_all(sent, sizes=(HEADER.size + q.nbytes(mine.layout),) * n)
        with ctx.clock.span("decode"):
            total = self._sum(arrived, mine.context(ctx))
        with ctx.clock.span("encode"):
            payload = self._seal(total, mine.context(ctx, hop=1))
        known = [HEADER.size + wide_bytes(cut.layout.numel, self.sum_width(n)) for cut in cuts]
        everybody = await ctx.comm.all_gather(payload.data, sizes=known)

        with ctx.clock.span("decode"):
            parts = [
                self._open(ctx.payload(data), cut.context(ctx, hop=1)) * _spread(self._steps(scale, n), q, cut.layout)
                for data, cut, scale in zip(everybody, cuts, scales, strict=True)
            ]
            return torch.cat(parts)

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """The largest scales, symbols to the shards' owners, and exact sums back."""
        q, cuts = self.compressor, shards(layout, n)
        scales = q.blocks(layout).count
        if q.blocks(layout).starts is None:
            scales = sum(q.blocks(cut.layout).count for cut in cuts)
        coder, sizes = q.id, [cut.layout.numel for cut in cuts]
        return [
            Code("encode", coder, layout.numel),
            Reduce(4 * scales),
            Code("encode", coder, layout.numel),
            Scatter(tuple(HEADER.size + q.nbytes(cut.layout) for cut in cuts)),
            Code("decode", coder, tuple(n * d for d in sizes)),
            Code("encode", coder, tuple(sizes)),
            Gather(tuple(HEADER.size + wide_bytes(d, self.sum_width(n)) for d in sizes)),
            Code("decode", coder, layout.numel),
        ]

    def _scales(self, x: Tensor, cuts: Sequence[Shard], layout: Layout) -> Tensor:
        """Scales of this rank alone, of whole tensors or of the shards' blocks; `x` is clipped to them, in place."""
        q, starts = self.compressor, self.compressor.blocks(layout).starts
        if starts is None:
            return torch.cat([q.scales(x[cut.start : cut.stop], cut.layout) for cut in cuts])
        own = q.scales(x, layout)
        if q.quant.norm is Norm.CLIPPED:
            for (a, b), limit in zip(q.blocks(layout).ranges(), own, strict=True):
                x[a:b].clamp_(-limit, limit)
        return own

    def _by_shard(self, shared: Tensor, cuts: Sequence[Shard], layout: Layout) -> Sequence[Tensor]:
        """The scales of every shard's blocks: of the tensors that they are parts of, or its own."""
        q, starts = self.compressor, self.compressor.blocks(layout).starts
        mine = [q.blocks(cut.layout) for cut in cuts]
        if starts is None:
            return torch.split(shared, [blocks.count for blocks in mine])
        parts = [cast("Tensor", blocks.starts)[:-1] + cut.start for blocks, cut in zip(mine, cuts, strict=True)]
        return [shared[(torch.bucketize(part, starts, right=True) - 1).to(shared.device)] for part in parts]

    def _steps(self, scales: Tensor, n: int) -> Tensor:
        """N / (n s) of every block."""
        return scales / torch.full_like(scales, n * self.compressor.quant.levels)

    def _sum(self, arrived: list[Tensor], ctx: Context) -> Tensor:
        """The sum of the symbols that arrived: whole numbers in float32, which holds them exactly."""
        q, side = self.compressor, self.compressor.side_bytes(ctx.layout)
        out = torch.zeros(ctx.layout.numel, device=arrived[0].device)
        one = equal_blocks(ctx.layout, None)
        # N = s: symbols decode to themselves
        unit = torch.full((one.count,), float(q.quant.levels), device=out.device)
        for data in arrived:
            payload = ctx.payload(data)
            payload.open(scheme(q, ctx.layout), key=ctx.key)
            if payload.body.numel() != q.nbytes(ctx.layout):
                raise PayloadError(f"{q.id} has {q.nbytes(ctx.layout)} body bytes; {payload.body.numel()} arrived")
            kernels.select(out).decode_add(unit, payload.body[side:], q.quant, one, out, 1.0)
        return out

    def _scheme(self, ctx: Context) -> int:
        return (scheme(self.compressor, ctx.layout) + ctx.comm.size) & 0xFFFFFFFF

    def _seal(self, total: Tensor, ctx: Context) -> Payload:
        """The sum, from -n s as 0, in fields of `sum_width` bits: whole bytes first, low ones before high ones."""
        n = ctx.comm.size
        fields = (total + n * self.compressor.quant.levels).to(torch.int32)
        packed = pack_wide(fields, self.sum_width(n))
        payload = Payload.new(packed.numel(), total.device)
        payload.body.copy_(packed)
        return payload.seal(self._scheme(ctx), ctx.key)

    def _open(self, payload: Payload, ctx: Context) -> Tensor:
        """The inverse of `_seal`, after every check of the payload; float32."""
        payload.open(self._scheme(ctx), key=ctx.key)
        n = ctx.comm.size
        fields = unpack_wide(payload.body, ctx.layout.numel, self.sum_width(n))
        return (fields - n * self.compressor.quant.levels).float()


def _spread(values: Tensor, q: BlockQuantiser, layout: Layout) -> Tensor:
    """Each block's value for each of its elements."""
    blocks = q.blocks(layout)
    if blocks.starts is None:
        return values.repeat_interleave(blocks.size)[: blocks.n]
    return values.repeat_interleave(blocks.starts.diff().to(values.device), output_size=blocks.n)
