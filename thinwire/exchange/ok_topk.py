"""Ok-Topk: a sparse all-reduce through owners of regions, whose volume does not grow with the number of ranks.

    p_i = x_i + e_i,   S_i = the k largest of p_i
    1  S_i, cut at the edges of n regions: region j to rank j, which adds what it gets, in rank order
    2  each owner keeps what reaches the global threshold t (at most 2k/n elements) and sends it to everybody
    out = (1/n) of what was kept, the same bits on every rank;   e_i = p_i, but 0 where S_i made it into out

Sends at most k elements to owners and 2k (n-1)/n back: 6k (n-1)/n values and places on average over ranks, where an
all-gather of top-k sends 2k (n-1).

The last result, which all ranks hold, predicts the threshold and the regions: t is its k-th largest magnitude (if it
had m < k elements, its smallest, times (m/k)^(1/4)), and edges are the quantiles of its places. Every `exact_every`
steps, and in the first, the owners tell each other their k largest magnitudes and t is exact.
Where ranks' gradients have a part in common the count stays within 4k/5 .. 5k/4 (98% of steps or more, 2 to 8 ranks).
On independent noise, which gathers in the residuals for long, it leaves that range in a third of the steps, but never
exceeds 2k.

Reference: Li, Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022, arXiv 2201.07598,
algorithm 1.

Departs from the paper: the local selection is exact in every step (it costs one pass, as a threshold does).
Thresholds and regions follow from the last result instead of being kept and scaled, so that a checkpoint holds
nothing but elements; regions move every step. Owners that have too many elements drop the smallest, which stay in
the residuals, instead of handing them on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.topk import TopK
from thinwire.core.channel import Channel
from thinwire.core.exchange import Exchange
from thinwire.core.slots import Slot
from thinwire.core.types import Layout
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.sparse import Sparse, among, check_top, settle
from thinwire.kernels import selection
from thinwire.memory.error_feedback import ErrorFeedback

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Key, State

TINY = 2.0**-149  # the smallest magnitude that is not zero


@final
@dataclass(frozen=True)
class OkTopk(Exchange):
    """The mean over all ranks of about the `compressor.k` largest elements of the sum."""

    name: ClassVar[str] = "ok-topk"
    compressor: TopK = field(default_factory=lambda: TopK(ratio=0.01))
    exact_every: int = 32

    def __post_init__(self) -> None:
        check_top("OkTopk", self.compressor)
        if self.exact_every < 1:
            raise ValueError(f"OkTopk(exact_every={self.exact_every}): write a number of steps, 1 or more")

    @property
    def hops(self) -> dict[str, Channel]:
        """What a rank sends to owners; the residual is its memory."""
        return {"": Channel(self.compressor, ErrorFeedback())}

    @property
    def plain(self) -> Exchange:
        """A sum of float32."""
        return AllReduce()

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """The residual, and the last result, which is the same on all ranks."""
        return {**super().slots(layout, comm), "recv.last": Slot(replicated=True)}

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        n, ranks = x.numel(), ctx.comm.size
        k = self.compressor.most(n)
        with ctx.clock.span("encode"):
            p = x.float() + state["send.residual"]
            own = selection.top(p, k)
            last = selection.over(state["recv.last"], TINY)
            edges = regions(last[0], n, ranks)
            up, down = ctx.key, ctx.key.fold(hop=ctx.key.hop + 1)
            sent = [self._seal(_cut(own, a, b), b - a, up) for a, b in pairwise(edges)]
        arrived = await ctx.comm.all_to_all(sent)

        size = edges[ctx.comm.rank + 1] - edges[ctx.comm.rank]
        with ctx.clock.span("decode"):
            total = torch.zeros(size, device=x.device)
            for data in arrived:
                places, values = self.compressor.open(data, Layout.flat(size), up)
                total.index_add_(0, places, values)
        if ctx.key.step % self.exact_every and last[0].numel():
            threshold = predicted(last[1].abs() * ranks, k)
        else:
            threshold = await self._exact(total, k, ctx)
        with ctx.clock.span("encode"):
            kept = selection.over(total, max(threshold, TINY))
            most = max(1, 2 * k // ranks)
            if kept[0].numel() > most:
                best, values = selection.top(kept[1], most)
                kept = kept[0][best], values
            mine = self._seal(kept, size, down)
        everybody = await ctx.comm.all_gather(mine)

        with ctx.clock.span("decode"):
            parts = [
                self.compressor.open(data, Layout.flat(b - a), down)
                for data, (a, b) in zip(everybody, pairwise(edges), strict=True)
            ]
            places = torch.cat([part[0] + a for part, a in zip(parts, edges, strict=False)])
            whole = places, torch.cat([part[1] for part in parts])
            out = settle(whole, own[0][among(own[0], places)], p, state["send.residual"], ranks)
            if bool(whole[1].isfinite().all()):
                state["recv.last"].copy_(out)
            return out

    async def _exact(self, total: Tensor, k: int, ctx: Context) -> float:
        """The k-th largest magnitude of all regions together."""
        largest = selection.top(total, min(k, total.numel()))[1]
        everybody = torch.cat(await ctx.comm.all_gather(largest))
        values = selection.top(everybody, k)[1]
        return float(selection.magnitudes(values).min().view(torch.float32)) if values.numel() else 0.0

    def _seal(self, sparse: Sparse, n: int, key: Key) -> Tensor:
        return self.compressor.seal(*sparse, Layout.flat(n), key).data


def regions(places: Tensor, n: int, ranks: int) -> list[int]:
    """Edges of `ranks` regions of 0 .. n, each with equally many of the ascending `places`, or of equal size.

    >>> regions(torch.tensor([2, 3, 5, 90]), n=100, ranks=2), regions(torch.tensor([]), n=100, ranks=2)
    ([0, 5, 100], [0, 50, 100])
    """
    m = places.numel()
    if m < ranks:
        return [n * j // ranks for j in range(ranks + 1)]
    inner = places[torch.tensor([m * j // ranks for j in range(1, ranks)], dtype=torch.int64, device=places.device)]
    return [0, *inner.tolist(), n]


def predicted(magnitudes: Tensor, k: int) -> float:
    """The threshold that k elements will reach, judging by those that were kept last."""
    m = magnitudes.numel()
    if m >= k:
        return float(selection.top(magnitudes.contiguous(), k)[1].min())
    return float(magnitudes.min()) * math.sqrt(math.sqrt(m / k))


def _cut(sparse: Sparse, start: int, stop: int) -> Sparse:
    """The elements in start .. stop, counted from start."""
    low, high = torch.searchsorted(sparse[0], torch.tensor([start, stop], device=sparse[0].device)).tolist()
    return sparse[0][low:high] - start, sparse[1][low:high]
