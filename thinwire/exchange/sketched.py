"""Sketched sums: the heavy elements are found in a sum of sketches, and then their exact values are summed.

    p_i = x_i + e_i
    1  T = sum_i sketch(p_i)                   all-reduce of rows x cols counters, cols = width k
    2  I = the fetch k largest estimates of T; sum_i p_i on I, all-reduce of fetch k values
    out = (1/n) of the k largest of those sums;   e_i = p_i, but 0 at their places

Sends 2 (n-1)/n of (rows width + fetch) k values, whatever n is: places are not sent, since they follow from T on
every rank alike. n out + sum_i e_i' = sum_i (x_i + e_i).

Reference: Ivkin, Rothchild, Ullah, Braverman, Stoica, Arora, "Communication-efficient distributed SGD with
sketching", NeurIPS 2019, arXiv 1903.04488, algorithm 2.

Departs from the paper: the error kept is that of the vectors, not of their sketches, and momentum is the optimizer's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.count_sketch import CountSketch
from thinwire.compressors.sparse import check_count, how_many
from thinwire.core.channel import BUCKET, Channel
from thinwire.core.exchange import Exchange
from thinwire.core.outline import Code, Phase, Reduce, Size
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.sparse import settle
from thinwire.kernels import selection
from thinwire.memory.error_feedback import ErrorFeedback

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class Sketched(Exchange):
    """The mean over all ranks of about the largest `ratio` of the elements of the sum."""

    name: ClassVar[str] = "sketched"
    ratio: float = 0.001
    rows: int = 5
    width: float = 4.0
    fetch: float = 4.0

    def __post_init__(self) -> None:
        check_count("Sketched", self.ratio, None)
        if self.width <= 0 or self.fetch < 1:
            raise ValueError(
                f"Sketched(width={self.width}, fetch={self.fetch}): write width > 0 and fetch >= 1, in units of k"
            )
        _ = self.sketch(BUCKET)

    def sketch(self, n: int) -> CountSketch:
        """The sketch of n elements."""
        return CountSketch(self.rows, max(1, round(self.width * how_many(self.ratio, None, n))))

    @property
    def hops(self) -> dict[str, Channel]:
        """The sketch, of a bucket of 2^20 elements."""
        return {"": Channel(self.sketch(BUCKET), ErrorFeedback())}

    @property
    def plain(self) -> Exchange:
        """A sum of float32."""
        return AllReduce()

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        n, ranks = x.numel(), ctx.comm.size
        k, sketch = how_many(self.ratio, None, n), self.sketch(n)
        with ctx.clock.span("encode"):
            p = x.float() + state["send.residual"]
            table = torch.empty(sketch.nbytes(ctx.layout), dtype=torch.uint8, device=x.device)
            sketch.write(p, ctx.layout, ctx.key, table)
        total = await ctx.comm.all_reduce(table.view(torch.float32))
        with ctx.clock.span("decode"):
            estimate = torch.zeros_like(p)
            if n:
                sketch.add(total.view(torch.uint8), ctx.layout, ctx.key, estimate, 1.0)
            heavy, _ = selection.top(estimate, min(n, math.ceil(self.fetch * k)))
        exact = await ctx.comm.all_reduce(p[heavy])
        with ctx.clock.span("decode"):
            best, values = selection.top(selection.spoilt(total, exact), k)
            return settle((heavy[best], values), heavy[best], p, state["send.residual"], ranks)

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """A sum of sketches, and one of the elements that they find heavy."""
        d, sketch = layout.numel, self.sketch(layout.numel)
        heavy = min(d, math.ceil(self.fetch * how_many(self.ratio, None, d)))
        coder = sketch.id
        return [
            Code("encode", coder, d),
            Reduce(sketch.nbytes(layout)),
            Code("decode", coder, d),
            Reduce(4 * heavy),
            Code("decode", coder, heavy),
        ]
