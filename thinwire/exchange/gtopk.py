"""gTop-k: sums of k elements meet in pairs, and each pair keeps the k largest of their sum.

Sends k values and places in each of log2 n rounds, so that the cost hardly grows with n; all ranks work in every
round:

    p_i = x_i + e_i,   S_i = the k largest of p_i
    round r: rank i and rank i xor 2^r swap their sums; both add them and keep the k largest
    out = (1/n) S after the last round, the same bits on every rank

Ranks beyond the largest power of two give their S_i to a partner first and get the result from it.
An element that a rank gave and that is dropped in any round stays in that rank's residual: every rank sees the sums
of its own half of the tree, so it knows. The result and the residuals add up to what went in:
n out + sum_i e_i' = sum_i (x_i + e_i).

Reference: Shi, Wang, Zhao, Tang, Wang, Huang, Chu, "A distributed synchronous SGD algorithm with global top-k
sparsification for low bandwidth networks", ICDCS 2019, arXiv 1901.04359, algorithms 2 to 4.

Departs from the paper: all ranks merge, where the paper has a tree and a broadcast: the same sums in half the rounds.
The paper keeps in the residual what is not among the final places; an element that was dropped on one side of the
tree but whose place came from the other would be lost, and is kept here. It takes any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.topk import TopK
from thinwire.core.channel import Channel, empty
from thinwire.core.exchange import Exchange
from thinwire.core.outline import Around, Code, Phase, Size, Swap
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.sparse import Sparse, among, check_top, settle
from thinwire.kernels import selection
from thinwire.memory.error_feedback import ErrorFeedback

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class GTopK(Exchange):
    """The mean over all ranks of about the `compressor.k` largest elements of the sum."""

    name: ClassVar[str] = "gtopk"
    compressor: TopK = field(default_factory=lambda: TopK(ratio=0.001))

    def __post_init__(self) -> None:
        check_top("GTopK", self.compressor)

    @property
    def hops(self) -> dict[str, Channel]:
        """What a rank sends in a round; the residual is its memory."""
        return {"": Channel(self.compressor, ErrorFeedback())}

    @property
    def plain(self) -> Exchange:
        """A sum of float32."""
        return AllReduce()

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        rank, size = ctx.comm.rank, ctx.comm.size
        cube = 1 << (size.bit_length() - 1)  # ranks that merge; each of the others is the guest of one
        with ctx.clock.span("encode"):
            p = x.float() + state["send.residual"]
            own = selection.top(p, self.compressor.most(x.numel()))
        if rank >= cube:
            await ctx.comm.swap(self._seal(own, ctx, 0), [rank - cube])
            total = self._open(await self._from(rank - cube, ctx), ctx, 1)
            kept = self._open(await self._from(rank - cube, ctx), ctx, 2)[0]
            return settle(total, kept, p, state["send.residual"], size)

        given, total = [own[0]], own  # what remains of what the rank and its guest gave
        guest = rank + cube if rank + cube < size else None
        if guest is not None:
            theirs = self._open(await self._from(guest, ctx), ctx, 0)
            given.append(theirs[0])
            total = self._merge(total, theirs, given, ctx)
        for r in range(cube.bit_length() - 1):
            peer = rank ^ 1 << r
            equal = self.compressor.indices == "packed"
            data = (await ctx.comm.swap(self._seal(total, ctx, 3 + r), [peer], equal=equal))[peer]
            total = self._merge(total, self._open(data, ctx, 3 + r), given, ctx)
        if guest is not None:
            await ctx.comm.swap(self._seal(total, ctx, 1), [guest])
            await ctx.comm.swap(self._seal((given[1], torch.zeros_like(given[1], dtype=p.dtype)), ctx, 2), [guest])
        return settle(total, given[0], p, state["send.residual"], size)

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """Guests to their hosts, a hypercube of merges, and the result and what was kept back to the guests."""
        cube = 1 << (n.bit_length() - 1)
        coder, k = self.compressor.id, self.compressor.most(layout.numel)
        sent = size(self.channels[0], layout)

        def guests(rank: int, round_: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            other = rank - cube if rank >= cube else rank + cube
            near = (other,) if other < n else ()
            return near, near

        def across(r: int) -> Around:
            def peers(rank: int, round_: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
                near = (rank ^ 1 << r,) if rank < cube else ()
                return near, near

            return peers

        up = tuple(sent if rank >= cube else 0 for rank in range(n))
        down = tuple(sent if rank + cube < n else 0 for rank in range(n))
        phases: list[Phase] = [Code("encode", coder, layout.numel)]
        phases += [Swap(up, guests)] if n > cube else []
        for r in range(cube.bit_length() - 1):
            phases += [Swap(sent, across(r)), Code("decode", coder, 2 * k)]
        return phases + ([Swap(down, guests), Swap(down, guests)] if n > cube else [])

    def _merge(self, a: Sparse, b: Sparse, given: list[Tensor], ctx: Context) -> Sparse:
        """The k largest of the sum; elements that are not among them are taken out of `given`."""
        with ctx.clock.span("decode"):
            places, values = selection.merge(a, b)
            best, values = selection.top(values, self.compressor.most(ctx.layout.numel))
            places = places[best]
            given[:] = [part[among(part, places)] for part in given]
            return places, values

    async def _from(self, peer: int, ctx: Context) -> Tensor:
        return (await ctx.comm.swap(empty(torch.empty(0)), [peer]))[peer]

    def _seal(self, sparse: Sparse, ctx: Context, hop: int) -> Tensor:
        with ctx.clock.span("encode"):
            key = ctx.key.fold(hop=ctx.key.hop + hop)
            return self.compressor.seal(*sparse, ctx.layout, key).data

    def _open(self, data: Tensor, ctx: Context, hop: int) -> Sparse:
        with ctx.clock.span("decode"):
            return self.compressor.open(data, ctx.layout, ctx.key.fold(hop=ctx.key.hop + hop))
