"""The scales of blocks in Triton: in the pass that encodes, or in a pass of their own before it.

Sums run in float64 over 64 lanes, row by row, then by halving, in segments of 65536 elements (`kernels/scales.py`), so
that their bits do not depend on how many programs share the work.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.elements import CLIPPED, L2, MAX, MEAN, RANGE, SIDES, UNIT
from thinwire.kernels.gpu.ready import Ready

TOP = tl.constexpr(2.0**126)
INF = tl.constexpr(0x7F800000)  # the bits of infinity: what is not below is not finite
SMALL = tl.constexpr(2.0**-40)
ROWS = tl.constexpr(32)  # rows that a program has under way


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
                square += wide * wide
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


@Ready
@triton.jit(do_not_specialize=["block0", "per_block", "count"])
def segments(
    x,
    residual,
    scales,
    scratch,
    segment,  # (begin, end, block) of every segment of ragged blocks
    n,
    count,
    block0,
    size,
    per_block,
    alpha,
    clip,
    NORM: tl.constexpr,
    RAGGED: tl.constexpr,
    FEEDBACK: tl.constexpr,
    SINGLE: tl.constexpr,
    SOME: tl.constexpr,
):
    """SOME segments per program: their scales where they are whole blocks (SINGLE), else six numbers for `combine`."""
    which = tl.program_id(0).to(tl.int64) * SOME + tl.arange(0, SOME)
    live = which < count
    if RAGGED:
        begin = tl.load(segment + 3 * which, mask=live, other=0)
        end = tl.load(segment + 3 * which + 1, mask=live, other=0)
        block = tl.load(segment + 3 * which + 2, mask=live, other=0)
    else:
        block = block0 + which // per_block
        begin = block * size + (which % per_block) * 65536
        end = tl.minimum(tl.minimum(begin + 65536, (block + 1) * size), n)
    longest = tl.max(tl.where(live, end - begin, 0), axis=0)
    lane = tl.arange(0, 64)[None, :]
    largest = tl.zeros([SOME, 64], tl.int32)
    low = tl.full([SOME, 64], float("inf"), tl.float32)
    high = tl.full([SOME, 64], -float("inf"), tl.float32)
    total = tl.zeros([SOME, 64], tl.float64)
    square = tl.zeros([SOME, 64], tl.float64)
    ups = tl.zeros([SOME, 64], tl.float64)
    for at in range(0, longest, 64 * ROWS):
        values, there = (), ()
        for r in tl.static_range(ROWS):
            place = begin[:, None] + at + r * 64 + lane
            here = (place < end[:, None]) & live[:, None]
            v = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
            if FEEDBACK:
                v = v + tl.load(residual + place, mask=here, other=0.0) * alpha
            values = values + (v,)
            there = there + (here,)
        for r in tl.static_range(ROWS):
            v, here = values[r], there[r]
            if (NORM == MAX) | (NORM == UNIT) | (NORM == RANGE) | (NORM == CLIPPED):
                largest = tl.maximum(largest, bits(v))
            if NORM == RANGE:
                low = tl.minimum(low, tl.where(here, v, float("inf")))
                high = tl.maximum(high, tl.where(here, v, -float("inf")))
            wide = v.to(tl.float64)
            if NORM == MEAN:
                total += tl.abs(wide)
            if NORM == CLIPPED:
                total += wide
            if (NORM == L2) | (NORM == CLIPPED):
                square += wide * wide
            if NORM == SIDES:  # NaN is on neither side, and is in the first sum
                up = wide >= 0
                total += tl.where(up, 0.0, wide)
                square += tl.where(up, wide, 0.0)
                ups += tl.where(up & here, 1.0, 0.0)
    top = tl.max(largest, axis=1)
    least = tl.min(low, axis=1)
    most = tl.max(high, axis=1)
    first = tl.sum(halved(total, 64, SOME), axis=1)
    second = tl.sum(halved(square, 64, SOME), axis=1)
    many = tl.sum(ups, axis=1)
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    if SINGLE:
        a, b = one(top, least, most, first, second, many, (end - begin).to(tl.float64), clip, NORM)
        tl.store(scales + block * TWO, a, mask=live)
        if TWO == 2:
            tl.store(scales + block * TWO + 1, b, mask=live)
    else:
        to = scratch + 6 * which
        tl.store(to, top.to(tl.float64), mask=live)
        tl.store(to + 1, least.to(tl.float64), mask=live)
        tl.store(to + 2, most.to(tl.float64), mask=live)
        tl.store(to + 3, first, mask=live)
        tl.store(to + 4, second, mask=live)
        tl.store(to + 5, many, mask=live)


@Ready
@triton.jit(do_not_specialize=["block0", "size", "per_block"])
def combine(
    scales, scratch, starts, parts, n, block0, size, per_block, clip, NORM: tl.constexpr, RAGGED: tl.constexpr
):
    """One block per program: its segments in order."""
    which = tl.program_id(0).to(tl.int64)
    block = block0 + which
    if RAGGED:
        begin = tl.load(parts + which)
        end = tl.load(parts + which + 1)
        length = tl.load(starts + block + 1) - tl.load(starts + block)
    else:
        begin = which * per_block
        length = tl.minimum((block + 1) * size, n) - block * size
        end = begin + (length + 65535) // 65536
    top = tl.full([], 0.0, tl.float64)
    low = tl.full([], float("inf"), tl.float64)
    high = tl.full([], -float("inf"), tl.float64)
    total = tl.full([], 0.0, tl.float64)
    square = tl.full([], 0.0, tl.float64)
    ups = tl.full([], 0.0, tl.float64)
    for s in range(begin, end):
        of = scratch + 6 * s
        top = tl.maximum(top, tl.load(of))
        low = tl.minimum(low, tl.load(of + 1))
        high = tl.maximum(high, tl.load(of + 2))
        total += tl.load(of + 3)
        square += tl.load(of + 4)
        ups += tl.load(of + 5)
    a, b = one(
        top.to(tl.int32),
        low.to(tl.float32),
        high.to(tl.float32),
        total,
        square,
        ups,
        length.to(tl.float64),
        clip,
        NORM,
    )
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    tl.store(scales + block * TWO, a)
    if TWO == 2:
        tl.store(scales + block * TWO + 1, b)
