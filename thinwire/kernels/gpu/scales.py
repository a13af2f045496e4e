"""The scales of blocks in Triton: what a scale is, and blocks that find theirs in the pass that encodes.

Others find them in a pass before it (`gpu/segments.py`). Sums run in float64 over 64 lanes, row by row, then by
halving, in segments of 65536 elements (`kernels/scales.py`), so that their bits do not depend on how many programs
share the work.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.elements import CLIPPED, L2, MAX, MEAN, RANGE, UNIT

TOP = tl.constexpr(2.0**126)
INF = tl.constexpr(0x7F800000)  # the bits of infinity: what is not below is not finite
SMALL = tl.constexpr(2.0**-40)


@triton.jit
def bits(v):
    """A magnitude as an integer, in which NaN is above infinity, and infinity above every number."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def halved(rows, LANES: tl.constexpr, COUNT: tl.constexpr):
    """The sum of each of COUNT rows of LANES numbers, by halving: (COUNT, 1)."""
    for i in tl.static_range(6):
        if (LANES >> i) > 1:
            rows = tl.sum(tl.reshape(rows, [COUNT, 2, LANES >> (i + 1)]), axis=1)
    return rows


@triton.jit
def capped(v, finite):
    """A scale as it is sent: float32, between -2^126 and 2^126, one sign of zero, NaN if the block is not finite."""
    return tl.where(finite, tl.minimum(tl.maximum(v, -TOP), TOP).to(tl.float32) + 0.0, float("nan"))


@triton.jit
def clipped(top, total, square, size, clip):
    """min(largest magnitude, clip standard deviations) in float64."""
    mean = total / size
    mean_square = square / size
    variance = mean_square - mean * mean
    times = (tl.full([], 0.0, tl.float32) + clip).to(tl.float64)
    limit = times * tl.sqrt(tl.where(variance < 0, 0.0, variance))
    high = top.to(tl.float64)
    return tl.where((variance > mean_square * SMALL) & (limit < high), limit, high), mean + mean_square


@triton.jit
def one(top, low, high, total, square, ups, size, clip, NORM: tl.constexpr):
    """Both scales of blocks, of what was found out about them; `top` are bits."""
    largest = top.to(tl.float32, bitcast=True)
    finite = top < INF
    if NORM == RANGE:
        return capped(low, finite), capped(high, finite)
    elif NORM == UNIT:
        a = tl.where(finite, 1.0, float("nan"))
        return a, a
    elif NORM == MAX:
        a = capped(largest, finite)
        return a, a
    elif NORM == L2:
        v = tl.sqrt(square)  # of float64, which rounds once
        a = capped(v, tl.abs(v) < float("inf"))
        return a, a
    elif NORM == MEAN:
        v = total / size
        a = capped(v, tl.abs(v) < float("inf"))
        return a, a
    elif NORM == CLIPPED:
        v, known = clipped(largest, total, square, size, clip)
        a = capped(v, (tl.abs(known) < float("inf")) & (tl.abs(v) < float("inf")))
        return a, a
    else:  # SIDES: the sums of the elements below zero and of the others, and how many the others are
        others = size - ups
        below = total / tl.where(others < 1, 1.0, others)
        above = square / tl.where(ups < 1, 1.0, ups)
        known = tl.abs(total + square) < float("inf")
        finite = known & (tl.abs(below) < float("inf")) & (tl.abs(above) < float("inf"))
        return capped(below, finite), capped(above, finite)


@triton.jit
def fused_scales(p, scales, tile, live, clip, NORM: tl.constexpr, SIZE: tl.constexpr, NB: tl.constexpr):
    """The scales of blocks of SIZE = 1 to 512 elements inside tiles, stored, and spread over the eight rows."""
    PER_ROW: tl.constexpr = 1 if SIZE >= 64 else 64 // SIZE  # blocks
    LANES: tl.constexpr = 64 // PER_ROW
    DEEP: tl.constexpr = 1 if SIZE <= 64 else SIZE // 64  # rows of a block
    COUNT: tl.constexpr = NB * PER_ROW
    TWO: tl.constexpr = 2 if NORM == RANGE else 1
    block = tile.to(tl.int64) * (512 // SIZE)
    spread_a, spread_b = (), ()
    for g in tl.static_range(8 // DEEP):
        low = tl.reshape(p[g * DEEP], [COUNT, LANES])
        high = low
        largest = tl.abs(low)
        total = low.to(tl.float64)
        square = total * total
        if NORM == MEAN:
            total = tl.abs(total)
        for d in tl.static_range(1, DEEP):
            v = tl.reshape(p[g * DEEP + d], [COUNT, LANES])
            largest = tl.maximum(largest, tl.abs(v), propagate_nan=tl.PropagateNan.ALL)
            if NORM == RANGE:
                low = tl.minimum(low, v)
                high = tl.maximum(high, v)
            if (NORM == L2) | (NORM == MEAN) | (NORM == CLIPPED):
                wide = v.to(tl.float64)
                square = tl.fma(wide, wide, square)  # a square of float32 is exact
                total += tl.abs(wide) if NORM == MEAN else wide
        top = tl.max(bits(largest), axis=1)[:, None]
        if NORM == RANGE:
            low = tl.min(low, axis=1)[:, None]
            high = tl.max(high, axis=1)[:, None]
        if (NORM == L2) | (NORM == CLIPPED):
            square = halved(square, LANES, COUNT)
        if (NORM == MEAN) | (NORM == CLIPPED):
            total = halved(total, LANES, COUNT)
        size = tl.full([COUNT, 1], SIZE, tl.float64)
        a, b = one(top, low, high, total, square, total, size, clip, NORM)
        at = tl.reshape(block[:, None] + g * PER_ROW + tl.arange(0, PER_ROW)[None, :], [COUNT, 1]) * TWO
        there = tl.reshape(live[:, None] & (tl.arange(0, PER_ROW)[None, :] >= 0), [COUNT, 1])
        tl.store(scales + at, a, mask=there)
        if TWO == 2:
            tl.store(scales + at + 1, b, mask=there)
        if PER_ROW > 1:
            a = tl.reshape(tl.broadcast_to(a, [COUNT, LANES]), [NB, 64])
            b = tl.reshape(tl.broadcast_to(b, [COUNT, LANES]), [NB, 64])
        for _ in tl.static_range(DEEP):
            spread_a = spread_a + (a,)
            spread_b = spread_b + (b,)
    return spread_a, spread_b
