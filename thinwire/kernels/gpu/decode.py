"""Decode in Triton: `out = weight v_1 + weight v_2 + ...` of up to eight payloads in one pass over `out`."""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.elements import DITHER, NATURAL, NONE, RANGE, SIDES, SIGNED, factors, value
from thinwire.kernels.gpu.encode import FUSED, looked_up
from thinwire.kernels.gpu.tiles import field, load

MOST = 8  # payloads in one pass


@triton.jit
def block_scales(scales, tile, lane, live, ROW: tl.constexpr, SIZE: tl.constexpr, TWO: tl.constexpr):
    """Both scales of row ROW of tiles whose blocks have SIZE = 1 to 512 elements."""
    at = tile[:, None].to(tl.int64) * (512 // SIZE)
    if SIZE >= 64:
        at = at + ROW * 64 // SIZE
        there = live[:, None]
    else:
        at = at + ROW * (64 // SIZE) + lane // SIZE
        there = live[:, None] & (lane >= 0)
    a = tl.load(scales + at * TWO, mask=there, other=0.0)
    b = tl.load(scales + at * TWO + 1, mask=there, other=0.0) if TWO == 2 else a
    return a, b


@triton.jit
def add_one(
    rows,
    scales,
    codes,
    starts,
    reach,
    tile,
    lane,
    width,
    live,
    inside,
    base,
    size,
    weight,
    lo_end,
    hi_end,
    KIND: tl.constexpr,
    NORM: tl.constexpr,
    LEVELS: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The rows with one payload added."""
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    planes = load(codes, tile, lane, width, inside, WIDTH)
    out = ()
    for r in tl.static_range(8):
        if NORM == NONE:
            sa, sb = rows[r], rows[r]
        elif MODE == FUSED:
            sa, sb = block_scales(scales, tile, lane, live, r, SIZE, TWO)
        else:
            sa, sb = looked_up(scales, starts, reach, tile, base + r * width, live, size, MODE, SIZE, TWO)
        if KIND == NATURAL:
            code = planes[r]
            sign = (planes[8] >> r) & 1
            v = value(code, sign, sa, sb, KIND, LEVELS)
        else:
            code = field(planes, r, WIDTH)
            if (KIND == SIGNED) | (KIND == DITHER):
                code = (code ^ (1 << (WIDTH - 1))) - (1 << (WIDTH - 1))
            _, lo, _, step = factors(sa, sb, KIND, NORM, LEVELS, 1.0, lo_end, hi_end)
            v = value(code, code, lo, step, KIND, LEVELS)
        out = out + (rows[r] + v * weight,)
    return out


@triton.jit(do_not_specialize=["tile0", "lanes", "size"])
def decode(
    s0, s1, s2, s3, s4, s5, s6, s7,
    c0, c1, c2, c3, c4, c5, c6, c7,
    out, starts, reach, n, tiles, tile0, lanes, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, FRESH: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Tiles tile0, tile0 + 1, ...: `NB` per program; COUNT payloads, their scales and codes given one by one."""
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    width = 64 if FULL else lanes
    base = tile[:, None].to(tl.int64) * 512 + lane
    inside = live[:, None] & (lane < width)
    rows = ()
    for r in tl.static_range(8):
        if FRESH:
            rows = rows + (tl.zeros([NB, 64], tl.float32),)
        else:
            here = inside if FULL else inside & (base + r * width < n)
            rows = rows + (tl.load(out + base + r * width, mask=here, other=0.0),)
    sides = (s0, s1, s2, s3, s4, s5, s6, s7)
    codes = (c0, c1, c2, c3, c4, c5, c6, c7)
    for i in tl.static_range(COUNT):
        rows = add_one(
            rows, sides[i], codes[i], starts, reach, tile, lane, width, live, inside, base, size, weight, lo_end,
            hi_end, KIND, NORM, LEVELS, WIDTH, MODE, SIZE,
        )  # fmt: skip
    for r in tl.static_range(8):
        here = inside if FULL else inside & (base + r * width < n)
        tl.store(out + base + r * width, rows[r], mask=here)
