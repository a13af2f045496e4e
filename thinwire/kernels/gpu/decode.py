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


@triton.jit
def decoded(planes, sa, sb, weight, lo_end, hi_end, KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr,
            WIDTH: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """The values of row R, times the weight."""
    if KIND == NATURAL:
        return value(planes[R] & 255, (planes[8] >> R) & 1, sa, sb, KIND, LEVELS) * weight
    else:
        _, lo, _, step = factors(sa, sb, KIND, NORM, LEVELS, 1.0, lo_end, hi_end)
        bits = field(planes, R, WIDTH)
        if KIND == SIGNED:
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
    SIZE: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr, BY_TILE: tl.constexpr,
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
        out = out + (rows[r] + decoded(planes, sa, sb, weight, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, r),)
    return out


@triton.jit
def added(
    sides, codes, out, starts, reach, begin, end, n, tile, lane, width, live, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, FRESH: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr,
    BY_TILE: tl.constexpr,
):  # fmt: skip
    """Read what is there, add COUNT payloads, and write."""
    base = tile[:, None].to(tl.int64) * 512 + lane
    here = live[:, None] & (lane < width)
    rows = so_far(out, base, width, here, n, FRESH, FULL, NB)
    for i in tl.static_range(COUNT):
        rows = add_one(
            rows, sides[i], codes[i], starts, reach, begin, end, tile, lane, width, live, here, base, size, weight,
            lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, MODE, SIZE, FULL, NB, BY_TILE,
        )  # fmt: skip
    write(out, rows, base, width, here, n, FULL)


@Ready
@triton.jit(do_not_specialize=["tile0", "lanes", "size"])
def decode(
    s0, s1, s2, s3, s4, s5, s6, s7,
    c0, c1, c2, c3, c4, c5, c6, c7,
    out, starts, reach, n, tiles, tile0, lanes, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, FRESH: tl.constexpr, FULL: tl.constexpr,
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
    if quick:
        added(
            sides, codes, out, starts, reach, begin, end, n, tile, lane, width, live, size, weight, lo_end, hi_end,
            KIND, NORM, LEVELS, WIDTH, MODE, SIZE, COUNT, FRESH, FULL, NB, MODE == RAGGED,
        )  # fmt: skip
    else:
        added(
            sides, codes, out, starts, reach, begin, end, n, tile, lane, width, live, size, weight, lo_end, hi_end,
            KIND, NORM, LEVELS, WIDTH, MODE, SIZE, COUNT, FRESH, FULL, NB, MODE == TILE,
        )  # fmt: skip
