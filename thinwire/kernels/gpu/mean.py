"""The mean of up to eight payloads in Triton, for weights that are powers of two: the weight is multiplied in last.

    out = weight (v_1 + v_2 + ...)

has the bits of weight v_1 + weight v_2 + ... unless a number is too small or too large for a normal float, which the
scales tell: tiles with such scales are decoded again, as `gpu/decode.py` does it.

Four lanes share a word. What can be done to four fields at a time is done to the word; then one instruction makes
each byte the lowest of a float. Where a byte holds whole fields, planes take turns in a loop: the code of eight
payloads is long, and a processor that waits for instructions is as slow as one that waits for memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.blocks import FUSED, RAGGED, at, inside, of_tiles, reached
from thinwire.kernels.gpu.decode import added
from thinwire.kernels.gpu.elements import DITHER, INTERPRETED, RANGE, SIDES, SIGNED, UNIT, UNSIGNED, factors
from thinwire.kernels.gpu.ready import Ready

SMALLEST, LARGEST = tl.constexpr(2.0**-60), tl.constexpr(2.0**60)  # scales that need no care
EACH_BYTE, SIGN_BIT = tl.constexpr(0x01010101), tl.constexpr(1 << 31)


@triton.jit
def lanes(w, NB: tl.constexpr):
    """Words for each of their four lanes, (tiles, 16) to (tiles, 64)."""
    return tl.reshape(tl.broadcast_to(w[:, :, None], [NB, 16, 4]), [NB, 64])


@triton.jit
def turn(NB: tl.constexpr):
    """Which of its word's four lanes each is, (tiles, 64)."""
    return tl.reshape(tl.broadcast_to(tl.arange(0, 4)[None, None, :], [NB, 16, 4]), [NB, 64])


@triton.jit
def chosen(w, FILL: tl.constexpr, PLACE: tl.constexpr, NB: tl.constexpr):
    """The lane's byte of its word, as byte PLACE of a word whose other bytes are FILL's."""
    if INTERPRETED:
        byte = (lanes(w, NB) >> (8 * turn(NB))) & 255
        return (byte << (8 * PLACE)) | (FILL & ~(255 << (8 * PLACE)))
    else:
        which = (0x7654 & ~(15 << (4 * PLACE))) | (turn(NB) << (4 * PLACE))
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [lanes(w, NB), FILL + 0 * which, which], dtype=tl.int32,
            is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def fields(words, R: tl.constexpr, WIDTH: tl.constexpr):
    """Row R of fields, one in each byte of a word; `words` are those of its plane, or of all where fields reach far."""
    J: tl.constexpr = 0 if 8 % WIDTH == 0 else R * WIDTH // 8
    LOW: tl.constexpr = R * WIDTH % 8
    IN_THIS: tl.constexpr = ((1 << WIDTH) - 1) & (255 >> LOW)
    f = (words[J] >> LOW) & ((IN_THIS * EACH_BYTE ^ SIGN_BIT) - SIGN_BIT)  # the mask as a number with a sign
    if LOW + WIDTH > 8:
        IN_NEXT: tl.constexpr = ((1 << WIDTH) - 1) & ~IN_THIS
        f = f | ((words[J + 1] << (8 - LOW)) & (IN_NEXT * EACH_BYTE))
    return f


@triton.jit
def powers(f, WIDTH: tl.constexpr, NB: tl.constexpr):
    """Codes of natural dithering, m with a sign, as 2^(m - 15) with it, and 0 where m is: halves of one byte."""
    below = (f >> (WIDTH - 1)) & EACH_BYTE  # 1 where the code is negative
    m = (f ^ (below * ((1 << WIDTH) - 1))) + below
    half = chosen((below << 7) | (m << 2), 0, 1, NB).to(tl.int16)
    return half.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def values(words, a, b, lo_end, hi_end, KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr,
           WIDTH: tl.constexpr, R: tl.constexpr, NB: tl.constexpr):  # fmt: skip
    """What row R decodes to."""
    _, lo, _, step = factors(a, b, KIND, NORM, LEVELS, 1.0, lo_end, hi_end)
    if KIND == DITHER:
        return powers(fields(words, R, WIDTH), WIDTH, NB) * (step * 2.0 ** (15 - LEVELS))
    elif WIDTH == 1:
        shift = 31 - R - 8 * turn(NB)  # from the field to the sign bit
        if (NORM == RANGE) | (NORM == SIDES) | (NORM == UNIT):
            return tl.where((lanes(words[0], NB) << shift) < 0, lo + step if KIND == UNSIGNED else step, lo)
        else:  # plus or minus the scale, whose sign bit is the opposite of the field
            sign = (lanes(words[0], NB) << shift) & -2147483648
            return (sign ^ (-a).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    else:
        HALF: tl.constexpr = (1 << (WIDTH - 1)) if KIND == SIGNED else 0
        bits = chosen(
            fields(words, R, WIDTH) ^ ((HALF * EACH_BYTE ^ SIGN_BIT) - SIGN_BIT), 0x4B000000, 0, NB
        )  # 2^23 + field + HALF
        v = (bits.to(tl.float32, bitcast=True) - (8388608.0 + HALF)) * step
        return v if KIND == SIGNED else lo + v


@triton.jit
def careless(s):
    """Whether a scale is such that the weight may come last."""
    a = tl.abs(s)
    return (a == 0) | ((a >= SMALLEST) & (a <= LARGEST))


@triton.jit
def row_scale(scales, tile, row, live, SIZE: tl.constexpr, TWO: tl.constexpr):
    """Both scales of a row of tiles whose blocks have 64 to 256 elements."""
    return at(scales, tile[:, None].to(tl.int64) * (512 // SIZE) + row * 64 // SIZE, live[:, None], TWO)


@triton.jit
def write_rows(
    sides, codes, scales, out, word, base, tile, plane, live, there, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
    COUNT: tl.constexpr, NB: tl.constexpr, PLANES: tl.constexpr, ROWS: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """The ROWS rows that PLANES planes hold, from `plane` on."""
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    totals = ()
    for _ in tl.static_range(ROWS):
        totals = totals + (tl.zeros([NB, 64], tl.float32),)
    for i in tl.static_range(COUNT):
        words = ()
        for j in tl.static_range(PLANES):
            here = codes[i].to(tl.pointer_type(tl.int32)) + word + (plane + j) * 16
            words = words + (tl.load(here, mask=live[:, None], other=0),)
        more = ()
        for k in tl.static_range(ROWS):
            if ALONE:
                a, b = row_scale(sides[i], tile, plane * ROWS + k, live, SIZE, TWO)
            else:
                a, b = scales[2 * i], scales[2 * i + 1]
            more = more + (totals[k] + values(words, a, b, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, k, NB),)
        totals = more
    for k in tl.static_range(ROWS):
        tl.store(out + base + (plane * ROWS + k) * 64, totals[k] * weight, mask=there)


@triton.jit
def weighed_last(
    sides, codes, out, reach, tile, lane, live, size, weight, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Write the mean where all scales are such that the weight may come last; returns whether they are, as 0 or 1."""
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    ALONE: tl.constexpr = (MODE == FUSED) & (SIZE < 512)  # a tile has several scales
    word = tile[:, None].to(tl.int64) * (16 * WIDTH) + tl.arange(0, 16)[None, :]
    base = tile[:, None].to(tl.int64) * 512 + lane
    scales = ()
    fine = live[:, None] | True
    for i in tl.static_range(COUNT):
        if ALONE:
            for block in tl.static_range(512 // SIZE):
                a, b = row_scale(sides[i], tile, block * (SIZE // 64), live, SIZE, TWO)
                fine = fine & careless(a) & careless(b)
        else:
            if MODE == FUSED:
                a, b = inside(sides[i], tile, lane, live, 0, SIZE, TWO)
            else:
                a, b = of_tiles(sides[i], reach, tile, live, size, MODE, SIZE, TWO)
            fine = fine & careless(a) & careless(b)
            scales = scales + (a, b)
    all_fine = tl.min(fine.to(tl.int32))
    there = ((live[:, None] & (lane < 64)).to(tl.int32) * all_fine) != 0
    if 8 % WIDTH == 0:
        for plane in range(WIDTH):
            write_rows(
                sides, codes, scales, out, word, base, tile, plane, live, there, weight, lo_end, hi_end,
                KIND, NORM, LEVELS, WIDTH, SIZE, COUNT, NB, 1, 8 // WIDTH, ALONE,
            )  # fmt: skip
    else:
        write_rows(
            sides, codes, scales, out, word, base, tile, 0, live, there, weight, lo_end, hi_end,
            KIND, NORM, LEVELS, WIDTH, SIZE, COUNT, NB, WIDTH, 8, ALONE,
        )  # fmt: skip
    return all_fine


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
        fine = weighed_last(
            sides, codes, out, reach, tile, lane, live, size, weight, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, MODE,
            SIZE, COUNT, NB,
        )  # fmt: skip
        done = fine == 1
    if not done:
        added(
            sides, codes, out, starts, reach, begin, end, n, tile, lane, 64, live, size, weight, lo_end, hi_end,
            KIND, NORM, LEVELS, WIDTH, MODE, SIZE, COUNT, True, True, NB, (MODE != FUSED) & (MODE != RAGGED),
        )  # fmt: skip
