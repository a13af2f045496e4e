"""The mean of up to eight payloads in Triton, for weights that are powers of two: the weight is multiplied in last.

    out = weight (v_1 + v_2 + ...)

has the bits of weight v_1 + weight v_2 + ... unless a number is too small or too large for a normal float, which the
scales tell: tiles with such scales are decoded again, as `gpu/decode.py` does it. Fields of 1, 2, 4 and 8 bits are
not moved to the lowest bits: they become the middle bits of a float, times a power of two that the step takes away.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.blocks import FUSED, RAGGED, inside, of_tiles, reached
from thinwire.kernels.gpu.decode import added
from thinwire.kernels.gpu.elements import (
    DITHER,
    INTERPRETED,
    NONE,
    RANGE,
    SIDES,
    SIGN,
    SIGNED,
    UNSIGNED,
    factors,
    number,
)
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.tiles import field, four, write

SMALLEST, LARGEST = tl.constexpr(2.0**-60), tl.constexpr(2.0**60)  # scales that need no care
UP = tl.constexpr(2.0**64)


@triton.jit
def halves(w, NB: tl.constexpr):
    """Words as four lanes each, (tiles, 16) to (tiles, 64): lanes 0 and 1 in the word's low half, 2 and 3 too."""
    shift = ((tl.arange(0, 4) >> 1) * 16)[None, None, :]
    return tl.reshape(tl.broadcast_to(w[:, :, None], [NB, 16, 4]) >> shift, [NB, 64])


@triton.jit
def place(LOW: tl.constexpr, NB: tl.constexpr):
    """Where in its half word a field begins that begins at bit LOW of its byte, (tiles, 64) int32."""
    at = ((tl.arange(0, 4) & 1) * 8)[None, None, :] + LOW
    return tl.reshape(tl.broadcast_to(at, [NB, 16, 4]), [NB, 64])


@triton.jit
def highest(planes, R: tl.constexpr, WIDTH: tl.constexpr):
    """Row R of fields in the highest bits; what lies below is not cleared."""
    J: tl.constexpr = R * WIDTH // 8
    LOW: tl.constexpr = R * WIDTH % 8
    both = planes[J]
    if LOW + WIDTH > 8:
        both = (planes[J] & 255) | (planes[J + 1] << 8)
    return both << (32 - WIDTH - LOW)


@triton.jit
def and_xor(a, b, c):
    """(a & b) ^ c, which the compiler makes two instructions of where b and c are constants."""
    if INTERPRETED:
        return (a & b) ^ c
    else:
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0x6A;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def whole(words, R: tl.constexpr, WIDTH: tl.constexpr, SIGN_BIT: tl.constexpr, NB: tl.constexpr):
    """Row R of fields as floats, and what they must be multiplied with to be the fields' numbers."""
    if 8 % WIDTH == 0:
        p = place(R * WIDTH % 8, NB)
        half = (1 << (WIDTH - 1)) << p if SIGN_BIT else p * 0
        bits = and_xor(halves(words[R * WIDTH // 8], NB), ((1 << WIDTH) - 1) << p, half | 0x4B000000)
        v = bits.to(tl.float32, bitcast=True) - (8388608 + half).to(tl.float32)
        return v, ((127 - p) << 23).to(tl.float32, bitcast=True)
    else:
        planes = ()
        for j in tl.static_range(WIDTH):
            planes = planes + (four(words[j], NB),)
        v = number(field(planes, R, WIDTH), WIDTH, SIGN_BIT)
        return v, v * 0 + 1.0


@triton.jit
def values(words, a, b, lo_end, hi_end, KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr,
           WIDTH: tl.constexpr, R: tl.constexpr, NB: tl.constexpr):  # fmt: skip
    """What row R decodes to."""
    _, lo, _, step = factors(a, b, KIND, NORM, LEVELS, 1.0, lo_end, hi_end)
    if WIDTH == 1:
        bit = halves(words[0], NB) & (1 << place(R, NB))
        if KIND == SIGN:
            return tl.where(bit != 0, step, -step)
        elif KIND == UNSIGNED:
            return tl.where(bit != 0, lo + step, lo)
        else:  # PAIR
            return tl.where(bit != 0, step, lo)
    elif KIND == DITHER:
        planes = ()
        for j in tl.static_range(WIDTH):
            planes = planes + (four(words[j], NB),)
        code = highest(planes, R, WIDTH) >> (9 - WIDTH)  # as the exponent of a float
        bits = tl.abs(code) | (code & -2147483648)
        power = bits.to(tl.float32, bitcast=True) * UP  # 2^(m - 63) with the code's sign, and 0 where m is
        return power * (step * 2.0 ** (63 - LEVELS))
    else:
        v, unit = whole(words, R, WIDTH, KIND == SIGNED, NB)
        v = v * (step * unit)
        return v if KIND == SIGNED else lo + v


@triton.jit
def careless(s):
    """Whether a scale is such that the weight may come last."""
    a = tl.abs(s)
    return (a == 0) | ((a >= SMALLEST) & (a <= LARGEST))


@triton.jit
def totals(
    sides, codes, reach, tile, lane, live, size, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """The sums of COUNT payloads, and whether all scales are such that the weight may come last."""
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    at = tile[:, None].to(tl.int64) * (16 * WIDTH) + tl.arange(0, 16)[None, :]
    rows = ()
    for _ in tl.static_range(8):
        rows = rows + (tl.zeros([NB, 64], tl.float32),)
    fine = live[:, None] | True
    for i in tl.static_range(COUNT):
        here = codes[i].to(tl.pointer_type(tl.int32)) + at
        words = ()
        for j in tl.static_range(WIDTH):
            words = words + (tl.load(here + j * 16, mask=live[:, None], other=0),)
        a, b = rows[0], rows[0]
        if MODE != FUSED and NORM != NONE:
            a, b = of_tiles(sides[i], reach, tile, live, size, MODE, SIZE, TWO)
            fine = fine & careless(a) & careless(b)
        more = ()
        for r in tl.static_range(8):
            if MODE == FUSED and NORM != NONE:
                a, b = inside(sides[i], tile, lane, live, r, SIZE, TWO)
                if r * 64 % SIZE == 0:  # the first row of a block
                    fine = fine & careless(a) & careless(b)
            more = more + (rows[r] + values(words, a, b, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, r, NB),)
        rows = more
    return rows, tl.min(fine.to(tl.int32))


@Ready
@triton.jit(do_not_specialize=["size"])
def mean(
    s0, s1, s2, s3, s4, s5, s6, s7,
    c0, c1, c2, c3, c4, c5, c6, c7,
    out, starts, reach, n, tiles, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Full tiles: `NB` per program; COUNT payloads, their scales and codes given one by one."""
    tile = tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    sides = (s0, s1, s2, s3, s4, s5, s6, s7)
    codes = (c0, c1, c2, c3, c4, c5, c6, c7)
    begin, end, done = 0, 0, True
    if MODE == RAGGED:
        begin, end, done = reached(reach, tile, live)
    if done:
        rows, fine = totals(
            sides, codes, reach, tile, lane, live, size, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, MODE, SIZE, COUNT,
            NB,
        )  # fmt: skip
        weighted = ()
        for r in tl.static_range(8):
            weighted = weighted + (rows[r] * weight,)
        base = tile[:, None].to(tl.int64) * 512 + lane
        there = (live[:, None] & (lane < 64)).to(tl.int32) * fine
        write(out, weighted, base, 64, there != 0, n, True)
        done = fine == 1
    if not done:
        added(
            sides, codes, out, starts, reach, begin, end, n, tile, lane, 64, live, size, weight, lo_end, hi_end,
            KIND, NORM, LEVELS, WIDTH, MODE, SIZE, COUNT, True, True, NB, (MODE != FUSED) & (MODE != RAGGED),
        )  # fmt: skip
