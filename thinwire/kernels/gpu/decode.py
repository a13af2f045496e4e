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
    UNIT,
    UNSIGNED,
    factors,
    number,
    value,
)
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.tiles import (
    EACH_BYTE,
    SIGN_BIT,
    chosen,
    field,
    fields,
    lanes,
    load,
    load_words,
    placed,
    so_far,
    turn,
    write,
)

MOST = 8  # payloads in one pass


@triton.jit
def two_values(bit, a, lo, step, weight, KIND: tl.constexpr, NORM: tl.constexpr):
    """What fields of one bit decode to, given as the sign bits of `bit`, times the weight."""
    if (NORM == RANGE) | (NORM == SIDES) | (NORM == UNIT):
        high, low = (lo + step, lo + step * 0.0) if KIND == UNSIGNED else (step, lo)
        return tl.where(bit < 0, high * weight, low * weight)
    else:  # plus or minus the scale, whose sign bit is the opposite of the field
        flip = -2147483648
        low = -a
        if KIND == UNSIGNED:  # whose levels are added up: there is one zero, and infinity less infinity
            flip = tl.where(a == 0, 0, -2147483648)
            low = 0.0 - (a + (a - a))
        return ((bit & flip) ^ (low * weight).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def signs(word, a, weight, KIND: tl.constexpr, R: tl.constexpr, NB: tl.constexpr):
    """Plus or minus the scale `a`, (tiles, 1), times the weight, as row R of the bits of `word` says.

    Four lanes' signs are put into the scale's highest byte at once, and one instruction per lane adds its others.
    """
    low = -a
    flip = tl.full(a.shape, -2139062144, tl.int32)  # the sign of each byte
    if KIND == UNSIGNED:  # see `two_values`
        flip = tl.where(a == 0, 0, flip)
        low = 0.0 - (a + (a - a))
    rest = (low * weight).to(tl.int32, bitcast=True)
    high = ((rest >> 24) & 255) * EACH_BYTE
    # All four lanes compute the same here, which the compiler does once.
    return placed(((lanes(word, NB) << (7 - R)) & flip) ^ high, rest, NB).to(tl.float32, bitcast=True)


@triton.jit
def powers(f, step, LEVELS: tl.constexpr, WIDTH: tl.constexpr, NB: tl.constexpr):
    """Codes of natural dithering, m with a sign: 2^(m - LEVELS) times the step, and 0 where m is.

    The byte of a code begins a 16-bit float, 2^(m - 15). Zero times an infinite step must be zero: then the power
    becomes so large that a finite step makes it infinite.
    """
    below = (f >> (WIDTH - 1)) & EACH_BYTE  # 1 where the code is negative
    m = (f ^ (below * ((1 << WIDTH) - 1))) + below
    half = chosen((below << 7) | (m << 2), 0, 1, NB).to(tl.int16).to(tl.float16, bitcast=True)
    endless = step == float("inf")
    up = tl.where(endless, 2.0**100, 2.0 ** (15 - LEVELS))
    return (half.to(tl.float32) * up) * tl.where(endless, 2.0**100, step)


@triton.jit
def plus(row, words, sa, sb, weight, lo_end, hi_end, KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr,
         WIDTH: tl.constexpr, R: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr, SHARED: tl.constexpr):  # fmt: skip
    """The row with the values of row R, times the weight.

    `words` are planes, of full tiles as words that four lanes share: what can be done to four fields at a time is
    done to the word, and then one instruction makes each byte the lowest of a float.
    """
    if KIND == NATURAL:
        return row + value(words[R] & 255, (words[8] >> R) & 1, sa, sb, KIND, LEVELS) * weight
    else:
        _, lo, _, step = factors(sa, sb, KIND, NORM, LEVELS, 1.0, lo_end, hi_end)
        if (NORM != RANGE) & (NORM != SIDES) & (NORM != UNIT) & (WIDTH == 1) & FULL & SHARED:
            return row + signs(words[0], sa, weight, KIND, R, NB)
        elif WIDTH == 1:
            bit = lanes(words[0], NB) << (31 - R - 8 * turn(NB)) if FULL else words[0] << (31 - R)
            return row + two_values(bit, sa, lo, step, weight, KIND, NORM)
        elif (KIND == DITHER) & FULL & (LEVELS <= 15):
            return row + powers(fields(words, R, WIDTH), step, LEVELS, WIDTH, NB) * weight
        elif KIND == DITHER:
            HALF: tl.constexpr = 1 << (WIDTH - 1)
            bits = chosen(fields(words, R, WIDTH), 0, 0, NB) if FULL else field(words, R, WIDTH)
            code = ((bits & ((1 << WIDTH) - 1)) ^ HALF) - HALF
            return row + value(code, code, lo, step, KIND, LEVELS) * weight
        else:
            OFF: tl.constexpr = (1 << (WIDTH - 1)) if KIND == SIGNED else 0
            if FULL:
                flipped = fields(words, R, WIDTH) ^ ((OFF * EACH_BYTE ^ SIGN_BIT) - SIGN_BIT)
                v = chosen(flipped, 0x4B000000, 0, NB).to(tl.float32, bitcast=True) - (8388608.0 + OFF)
            else:
                v = number(field(words, R, WIDTH), WIDTH, KIND == SIGNED)
            if (KIND == SIGNED) & (WIDTH == 2):  # 0, 1, -1 and -2 lose nothing, whatever they multiply
                return tl.fma(v, step * weight, row)
            else:
                return row + (v * step if KIND == SIGNED else lo + v * step) * weight


@triton.jit
def add_one(
    rows, scales, codes, starts, reach, begin, end, tile, lane, width, live, here, base, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr, BY_TILE: tl.constexpr,
):  # fmt: skip
    """The rows with one payload added."""
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    if FULL and KIND != NATURAL:
        words = load_words(codes, tile, live, WIDTH)
    else:
        words = load(codes, tile, lane, width, live, here, NB, WIDTH, FULL)
    SHARED: tl.constexpr = BY_TILE or (MODE == FUSED and SIZE >= 64)  # whether the lanes of a row share a scale
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
        out = out + (
            plus(rows[r], words, sa, sb, weight, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, r, FULL, NB, SHARED),
        )
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
