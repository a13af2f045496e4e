"""Decode in Triton: `out = weight v_1 + weight v_2 + ...` of up to eight payloads in one pass over `out`."""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.blocks import FUSED, RAGGED, TILE, inside, looked_up, of_tiles, reached
from thinwire.kernels.gpu.elements import (
    DITHER,
    NATURAL,
    NONE,
    RANGE,
    SIDES,
    SIGNED,
    UNSIGNED,
    factors,
    number,
    value,
)
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.tiles import field, load, so_far, write

MOST = 8  # payloads in one pass
SMALL = tl.constexpr(2.0**-100)


@triton.jit
def in_place(planes, R: tl.constexpr, WIDTH: tl.constexpr, SIGN_BIT: tl.constexpr):
    """The fields of row R times a power of two, and its reciprocal: a field need not move to the lowest bits."""
    if WIDTH <= 2:  # measured: it pays where fields are narrow
        LOW: tl.constexpr = R * WIDTH % 8
        HALF: tl.constexpr = (1 << (WIDTH - 1 + LOW)) if SIGN_BIT else 0
        bits = (planes[R * WIDTH // 8] & (((1 << WIDTH) - 1) << LOW)) ^ (HALF | 0x4B000000)
        return bits.to(tl.float32, bitcast=True) - (8388608.0 + HALF), 1.0 / (1 << LOW)
    else:
        return number(field(planes, R, WIDTH), WIDTH, SIGN_BIT), 1.0


@triton.jit
def decoded(planes, sa, sb, weight, lo_end, hi_end, KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr,
            WIDTH: tl.constexpr, FOLD: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """The values of row R, times the weight, which FOLD multiplies into the scales first."""
    if KIND == NATURAL:
        return value(planes[R] & 255, (planes[8] >> R) & 1, sa, sb, KIND, LEVELS) * weight
    else:
        _, lo, _, step = factors(sa, sb, KIND, NORM, LEVELS, 1.0, lo_end, hi_end)
        bits = field(planes, R, WIDTH)
        if FOLD:
            v, unit = in_place(planes, R, WIDTH, KIND == SIGNED)
            part = v * ((step * weight) * unit)
            return part if KIND == SIGNED else lo * weight + part
        elif KIND == SIGNED:
            return (number(bits, WIDTH, True) * step) * weight
        elif (KIND == UNSIGNED) & (WIDTH > 1):
            return (lo + number(bits, WIDTH, False) * step) * weight
        elif WIDTH == 1:  # one of two values
            zero = tl.zeros_like(step).to(tl.int32)
            low, high = value(zero, zero, lo, step, KIND, LEVELS), value(zero + 1, zero, lo, step, KIND, LEVELS)
            return tl.where((bits & 1) != 0, high * weight, low * weight)
        elif KIND == DITHER:
            HALF: tl.constexpr = 1 << (WIDTH - 1)
            code = ((bits & ((1 << WIDTH) - 1)) ^ HALF) - HALF
            return value(code, code, lo, step, KIND, LEVELS) * weight
        else:
            code = bits & ((1 << WIDTH) - 1)
            return value(code, code, lo, step, KIND, LEVELS) * weight


@triton.jit
def add_one(
    rows, scales, codes, starts, reach, begin, end, tile, lane, width, live, here, base, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr, BY_TILE: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """The rows with one payload added."""
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    planes = load(codes, tile, lane, width, live, here, NB, WIDTH, FULL)
    a, b = rows[0], rows[0]
    if BY_TILE:
        a, b = of_tiles(scales, reach, tile, live, size, MODE, SIZE, TWO)
    out = ()
    for r in tl.static_range(8):
        if BY_TILE or NORM == NONE:
            sa, sb = a, b
        elif MODE == FUSED:
            sa, sb = inside(scales, tile, lane, live, r, SIZE, TWO)
        else:
            sa, sb = looked_up(scales, starts, begin, end, base + r * width, live, size, MODE, SIZE, TWO)
        out = out + (rows[r] + decoded(planes, sa, sb, weight, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, FOLD, r),)
    return out


@triton.jit
def foldable(
    sides, tile, lane, live, weight, lo_end, hi_end, KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr,
    COUNT: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Whether a weight that is a power of two may be multiplied into the scales of these tiles.

    (code step) weight and code (step weight) have the same bits unless a product is too small for a normal number.
    """
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    fine = live[:, None] | True
    for i in tl.static_range(COUNT):
        a, b = inside(sides[i], tile, lane, live, 0, SIZE, TWO)
        _, _, _, step = factors(a, b, KIND, NORM, LEVELS, 1.0, lo_end, hi_end)
        fine = fine & ((tl.abs(step * weight) >= SMALL) | (step == 0) | (step != step))
    return tl.min(fine.to(tl.int32)) == 1


@triton.jit
def added(
    sides, codes, out, starts, reach, begin, end, n, tile, lane, width, live, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, FRESH: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr,
    BY_TILE: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """Read what is there, add COUNT payloads, and write."""
    base = tile[:, None].to(tl.int64) * 512 + lane
    here = live[:, None] & (lane < width)
    rows = so_far(out, base, width, here, n, FRESH, FULL, NB)
    for i in tl.static_range(COUNT):
        rows = add_one(
            rows, sides[i], codes[i], starts, reach, begin, end, tile, lane, width, live, here, base, size, weight,
            lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, MODE, SIZE, FULL, NB, BY_TILE, FOLD,
        )  # fmt: skip
    write(out, rows, base, width, here, n, FULL)


@Ready
@triton.jit(do_not_specialize=["tile0", "lanes", "size"])
def decode(
    s0, s1, s2, s3, s4, s5, s6, s7,
    c0, c1, c2, c3, c4, c5, c6, c7,
    out, starts, reach, n, tiles, tile0, lanes, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, FRESH: tl.constexpr, FOLD: tl.constexpr, FULL: tl.constexpr,
    NB: tl.constexpr,
):  # fmt: skip
    """Tiles tile0, tile0 + 1, ...: `NB` per program; COUNT payloads, their scales and codes given one by one."""
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    width = 64 if FULL else lanes
    sides = (s0, s1, s2, s3, s4, s5, s6, s7)
    codes = (c0, c1, c2, c3, c4, c5, c6, c7)
    begin, end = 0, 0
    quick = False  # each branch writes for itself: what branches return would change threads
    if MODE == RAGGED:
        begin, end, quick = reached(reach, tile, live)
    elif FOLD:
        quick = foldable(sides, tile, lane, live, weight, lo_end, hi_end, KIND, NORM, LEVELS, COUNT, SIZE)
    if quick:
        added(
            sides, codes, out, starts, reach, begin, end, n, tile, lane, width, live, size, weight, lo_end, hi_end,
            KIND, NORM, LEVELS, WIDTH, MODE, SIZE, COUNT, FRESH, FULL, NB, MODE == RAGGED, FOLD,
        )  # fmt: skip
    else:
        added(
            sides, codes, out, starts, reach, begin, end, n, tile, lane, width, live, size, weight, lo_end, hi_end,
            KIND, NORM, LEVELS, WIDTH, MODE, SIZE, COUNT, FRESH, FULL, NB, MODE == TILE, False,
        )  # fmt: skip
