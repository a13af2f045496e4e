"""Scales that are found before an encode, in Triton: a pass over segments of 65536 elements, and one that joins them.

A sum has 64 chains of additions in each segment, one per lane, whose order is part of the format (`kernels/scales.py`):
no more threads than lanes can share one. So each has many rows under way, and whole segments take no masks. What does
not depend on the order, the largest and the smallest, has four lanes to a thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.elements import CLIPPED, L2, MAX, MEAN, RANGE, SIDES, UNIT
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.scales import bits, halved, one

SEGMENT = tl.constexpr(1 << 16)
FEW = tl.constexpr(4)  # rows at once, of the rest, where each element may be missing
AT_ONCE = tl.constexpr(16)  # segments whose sums are loaded before the first is added
MANY = tl.constexpr(512)  # segments whose extremes are loaded at once
NEVER = tl.constexpr(-1e300)  # beyond all sums of a tensor's numbers and of their squares
TOP_, LOW, HIGH, TOTAL, SQUARE, UPS = (tl.constexpr(i) for i in range(6))  # what a segment leaves for `combine`


@triton.jit
def read(x, residual, place, here, alpha, FEEDBACK: tl.constexpr, MASKED: tl.constexpr):
    """Elements, compensated."""
    v = tl.load(x + place, mask=here if MASKED else None, other=0.0 if MASKED else None).to(tl.float32)
    if FEEDBACK:
        v = v + tl.load(residual + place, mask=here if MASKED else None, other=0.0 if MASKED else None) * alpha
    return v


@triton.jit
def taken(found, v, here, NORM: tl.constexpr, MASKED: tl.constexpr):
    """What was found out about the lanes, with one more row."""
    largest, low, high, total, square, ups = found
    if (NORM == MAX) | (NORM == UNIT) | (NORM == RANGE) | (NORM == CLIPPED):
        largest = tl.maximum(largest, bits(v))
    if NORM == RANGE:
        low = tl.minimum(low, tl.where(here, v, float("inf")) if MASKED else v)
        high = tl.maximum(high, tl.where(here, v, -float("inf")) if MASKED else v)
    if NORM == MEAN:
        total += tl.abs(v.to(tl.float64))
    if (NORM == L2) | (NORM == CLIPPED):
        wide = v.to(tl.float64)
        square = tl.fma(wide, wide, square)  # a square of float32 is exact
        if NORM == CLIPPED:
            total += wide
    if NORM == SIDES:  # NaN is on neither side, and is in the first sum
        up, wide = v >= 0, v.to(tl.float64)
        total, square = tl.where(up, total, total + wide), tl.where(up, square + wide, square)
        ups += (up & here if MASKED else up).to(tl.int32)
    return largest, low, high, total, square, ups


@triton.jit
def rows_of(
    x, residual, begin, end, lane, alpha, LANES: tl.constexpr, COUNT: tl.constexpr, FEEDBACK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """COUNT rows from `begin` on, all loaded before one is used, and whether each element is there."""
    values, there = (), ()
    for r in tl.static_range(COUNT):
        place = r * LANES + lane
        here = begin + place < end
        values = values + (read(x + begin, residual + begin, place, here, alpha, FEEDBACK, MASKED),)
        there = there + (here,)
    return values, there


@Ready
@triton.jit(do_not_specialize=["block0", "per_block", "count"])
def segments(
    x, residual, scales, scratch,
    segment,  # (begin, end, block) of every segment of ragged blocks
    n, count, block0, size, per_block, alpha, clip,
    NORM: tl.constexpr, RAGGED: tl.constexpr, FEEDBACK: tl.constexpr, SINGLE: tl.constexpr,
    ROWS: tl.constexpr,  # of 64 lanes, under way at a time
):  # fmt: skip
    """One segment per program: its scales where it is a whole block (SINGLE), else six numbers for `combine`."""
    SUMS: tl.constexpr = (NORM == L2) | (NORM == MEAN) | (NORM == CLIPPED) | (NORM == SIDES)
    LANES: tl.constexpr = 64 if SUMS else 256
    COUNT: tl.constexpr = ROWS * 64 // LANES
    STEP: tl.constexpr = ROWS * 64
    which = tl.program_id(0).to(tl.int64)
    if RAGGED:
        begin = tl.load(segment + 3 * which)
        end = tl.load(segment + 3 * which + 1)
        block = tl.load(segment + 3 * which + 2)
    else:
        block = block0 + which // per_block
        begin = block * size + (which % per_block) * SEGMENT
        end = tl.minimum(tl.minimum(begin + SEGMENT, (block + 1) * size), n)
    lane = tl.arange(0, LANES)
    wide = tl.zeros([LANES], tl.float64)
    found = (
        tl.zeros([LANES], tl.int32),
        tl.full([LANES], float("inf"), tl.float32),
        tl.full([LANES], -float("inf"), tl.float32),
        wide, wide, tl.zeros([LANES], tl.int32),
    )  # fmt: skip
    whole = begin + (end - begin) // STEP * STEP
    values, there = rows_of(x, residual, begin, whole, lane, alpha, LANES, COUNT, FEEDBACK, True)
    for at in range(begin, whole, STEP):
        # Loaded one turn ahead: else the compiler saves registers, and has but ten loads under way.
        ahead, _ = rows_of(
            x, residual, tl.minimum(at + STEP, whole - STEP), end, lane, alpha, LANES, COUNT, FEEDBACK, False
        )
        for r in tl.static_range(COUNT):
            found = taken(found, values[r], there[r], NORM, False)
        values = ahead
    for at in range(whole, end, FEW * LANES):
        rest, inside = rows_of(x, residual, at, end, lane, alpha, LANES, FEW, FEEDBACK, True)
        for r in tl.static_range(FEW):
            found = taken(found, rest[r], inside[r], NORM, True)
    largest, low, high, total, square, ups = found
    top, least, most = tl.max(largest, axis=0), tl.min(low, axis=0), tl.max(high, axis=0)
    first, second = 0.0, 0.0
    if SUMS:
        first = tl.sum(tl.sum(halved(tl.reshape(total, [1, 64]), 64, 1), axis=1), axis=0)
        second = tl.sum(tl.sum(halved(tl.reshape(square, [1, 64]), 64, 1), axis=1), axis=0)
    many = tl.sum(ups, axis=0).to(tl.float64)
    if SINGLE:
        TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
        a, b = one(top, least, most, first, second, many, (end - begin).to(tl.float64), clip, NORM)
        tl.store(scales + block * TWO, a)
        if TWO == 2:
            tl.store(scales + block * TWO + 1, b)
    else:
        to = scratch + which
        tl.store(to + TOP_ * count, top.to(tl.float64))
        tl.store(to + LOW * count, least.to(tl.float64))
        tl.store(to + HIGH * count, most.to(tl.float64))
        tl.store(to + TOTAL * count, first)
        tl.store(to + SQUARE * count, second)
        tl.store(to + UPS * count, many)


@triton.jit
def near(numbers, begin, end):
    """`end`, after numbers begin .. end - 1 were read into the processor's own cache, from where single ones come fast.

    The compiler must not see that reading changes nothing: the end depends on a number that sums never are.
    """
    lowest = extreme(numbers, begin, end, True)
    return end - (lowest == NEVER).to(tl.int64)


@triton.jit
def in_order(a, b, begin, end, BOTH: tl.constexpr):
    """The sums of numbers begin .. end - 1 of `a`, and if BOTH of `b`, one after another."""
    end = near(a, begin, end)
    if BOTH:
        end = near(b, begin, end)
    first = tl.full([], 0.0, tl.float64)
    second = first
    whole = begin + (end - begin) // AT_ONCE * AT_ONCE
    for at in range(begin, whole, AT_ONCE):
        these, those = (), ()
        for i in tl.static_range(AT_ONCE):
            these = these + (tl.load(a + at + i),)
            those = those + (tl.load(b + at + i) if BOTH else first,)
        for i in tl.static_range(AT_ONCE):
            first += these[i]
            if BOTH:
                second += those[i]
    for at in range(whole, end):
        first += tl.load(a + at)
        if BOTH:
            second += tl.load(b + at)
    return first, second


@triton.jit
def extreme(numbers, begin, end, LEAST: tl.constexpr):
    """The largest of numbers begin .. end - 1, or the LEAST."""
    none = float("inf") if LEAST else -float("inf")
    found = tl.full([MANY], none, tl.float64)
    for at in range(begin, end, MANY):
        some = at + tl.arange(0, MANY)
        v = tl.load(numbers + some, mask=some < end, other=none)
        found = tl.minimum(found, v) if LEAST else tl.maximum(found, v)
    return tl.min(found, axis=0) if LEAST else tl.max(found, axis=0)


@triton.jit
def counted(numbers, begin, end):
    """The sum of whole numbers, which no order changes."""
    found = tl.zeros([MANY], tl.float64)
    for at in range(begin, end, MANY):
        some = at + tl.arange(0, MANY)
        found += tl.load(numbers + some, mask=some < end, other=0.0)
    return tl.sum(found, axis=0)


@Ready
@triton.jit(do_not_specialize=["block0", "size", "per_block", "count"])
def combine(
    scales, scratch, starts, parts, n, count, block0, size, per_block, clip, NORM: tl.constexpr, RAGGED: tl.constexpr
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
        end = begin + (length + SEGMENT - 1) // SEGMENT
    zero = tl.full([], 0.0, tl.float64)
    top, low, high, total, square, ups = zero, zero, zero, zero, zero, zero
    if (NORM == MAX) | (NORM == UNIT) | (NORM == RANGE) | (NORM == CLIPPED):
        top = extreme(scratch + TOP_ * count, begin, end, False)
    if NORM == RANGE:
        low = extreme(scratch + LOW * count, begin, end, True)
        high = extreme(scratch + HIGH * count, begin, end, False)
    if NORM == L2:
        square, _ = in_order(scratch + SQUARE * count, scratch, begin, end, False)
    elif (NORM == MEAN) | (NORM == CLIPPED) | (NORM == SIDES):
        total, square = in_order(scratch + TOTAL * count, scratch + SQUARE * count, begin, end, NORM != MEAN)
    if NORM == SIDES:
        ups = counted(scratch + UPS * count, begin, end)
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
