"""Who owns what: a vector is cut into one shard per rank, at multiples of 512 elements."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from thinwire.core.types import Context, Key, Layout
from thinwire.kernels.spec import TILE


class Shard(NamedTuple):
    """Elements `start` to `stop` of the vector, and their layout."""

    start: int
    stop: int
    layout: Layout

    def context(self, ctx: Context, hop: int = 0) -> Context:
        """The shard's part of the step, of its layout and of a model, with noise that no other shard or hop draws."""
        tile = -(-self.start // TILE) * TILE  # an empty shard at the end starts where there is no tile
        k = ctx.key
        key = Key(k.seed, k.step, k.rank, k.bucket, k.hop + hop, k.offset + tile)
        before = None if ctx.before is None else ctx.before[self.start : self.stop]
        return Context(ctx.comm, self.layout, key, ctx.clock, ctx.lr, before, ctx.motion, ctx.verdicts)


@lru_cache(maxsize=4096)
def shards(layout: Layout, n: int) -> tuple[Shard, ...]:
    """`n` shards of equal size; the last ones may be shorter, or empty.

    >>> [(s.start, s.stop) for s in shards(Layout.flat(1500), 4)]
    [(0, 512), (512, 1024), (1024, 1500), (1500, 1500)]
    """
    size = -(-layout.numel // (n * TILE)) * TILE
    edges = [min(rank * size, layout.numel) for rank in range(n + 1)]
    return tuple(Shard(a, b, layout.cut(a, b)) for a, b in pairwise(edges))
