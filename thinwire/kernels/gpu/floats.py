"""Floats of 8 and 4 bits in Triton: one pass that scales, rounds, packs, keeps the error and sums for the checksum.

Blocks of 1, 2, 4, ..., 512 elements find their scales in that pass; those of other blocks are found in one before it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.blocks import EQUAL, FUSED, eight, inside, looked_up, of_tiles
from thinwire.kernels.gpu.elements import MAX
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.scales import fused_scales
from thinwire.kernels.gpu.tiles import (
    INTERPRETED,
    chosen,
    compensated,
    field,
    fields,
    load,
    load_bytes,
    load_words,
    so_far,
    store,
    write,
)


@triton.jit
def reciprocal(scale):
    """(s, 1 / s, power): what elements of blocks with these scales are multiplied with, and what then divides them.

    As the processor's division begins. A tiny scale is raised by a power of two, for its reciprocal is too large.
    """
    s = tl.where(scale > 0, scale, tl.full([], 1.0, tl.float32))
    power = tl.where(s < 2.0**-60, 2.0**100, tl.full([], 1.0, tl.float32))
    s = s * power
    if INTERPRETED:
        return s, s, power
    else:
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [s], dtype=tl.float32, is_pure=True, pack=1
        )
        return s, tl.fma(tl.fma(-s, y, 1.0), y, y), power


@triton.jit
def quotient(p, s, y):
    """p / s of |p| <= s, rounded once, unless it is far below 1: then only its size is right, and its sign is not.

    The processor's own division ends this way; what it does besides is for numbers that are not found here.
    """
    if INTERPRETED:
        return tl.div_rn(p, s)
    else:
        q = p * y
        return tl.fma(tl.fma(-s, q, p), y, q)


@triton.jit
def rounded(p, s, y, power, TOP: tl.constexpr, BIAS: tl.constexpr, MANTISSA: tl.constexpr, WIDTH: tl.constexpr):
    """The codes of elements of blocks with `reciprocal` s, y and power.

    A number that is added to 2^23 times the format's spacing at its exponent comes out rounded to nearest even, and
    the sum's low bits count the spacings.
    """
    if WIDTH == 8:
        p = tl.where(p == p, p, 0.0)
    p = p * power
    inside = tl.maximum(tl.minimum(p, s), -s)  # NaN becomes s
    size = tl.abs(quotient(inside, s, y) * TOP)
    LEAST: tl.constexpr = (128 - BIAS) << 23  # the exponent of the smallest normal number, and of all below
    exponent = tl.maximum(size.to(tl.int32, bitcast=True) & 0x7F800000, LEAST)
    large = exponent + ((23 - MANTISSA) << 23)
    count = (size + large.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True) - large
    code = count + ((exponent - LEAST) >> (23 - MANTISSA))
    if WIDTH == 8:
        return code | ((p.to(tl.int32, bitcast=True) >> 24) & 128)
    else:  # the sign of a quotient that is not 0: above 2^-150, which is compared where nothing is lost
        return code | tl.where(p * (2.0**100) < s * (-(2.0**-50)), 8, 0)


@triton.jit
def step_of(scale, TOP: tl.constexpr):
    """scale / TOP: TOP is 1, 3 or 7 times a power of two, and float64's error is too small to change the rounding."""
    return (scale.to(tl.float64) * (1.0 / TOP)).to(tl.float32)


@triton.jit
def value(code, BIAS: tl.constexpr, MANTISSA: tl.constexpr, WIDTH: tl.constexpr):
    """The values of codes, of which the low WIDTH bits count: as bits of a float32 whose exponent is then moved."""
    DROP: tl.constexpr = 23 - MANTISSA
    REST: tl.constexpr = ((1 << (WIDTH - 1)) - 1) << DROP  # exponent and mantissa
    # The sign is shifted in from above; the bits between it and the exponent are cleared.
    b = ((code << (32 - WIDTH)) >> (32 - WIDTH - DROP)) & (REST - 2147483648)
    v = b.to(tl.float32, bitcast=True) * (2.0 ** (127 - BIAS))
    if WIDTH == 8:
        if MANTISSA == 3:  # all ones is NaN, and nothing is infinite
            v = tl.where((b & REST) == REST, float("nan"), v)
        else:  # the largest exponent is that of infinity and NaN
            special = (b & REST) >= (31 << 23)
            v = tl.where(special, (b | 0x7F800000).to(tl.float32, bitcast=True), v)
    return v


@triton.jit
def of_words(words, R: tl.constexpr, NB: tl.constexpr):
    """The values of row R of e5m2: a 16-bit float begins like one, and the processor converts it."""
    return chosen(fields(words, R, 8), 0, 1, NB).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@Ready
@triton.jit(do_not_specialize=["tile0", "lanes", "size", "first"])
def encode(
    x, residual, scales, codes, partial, n, tiles, tile0, lanes, size, first, alpha, beta,
    TOP: tl.constexpr, BIAS: tl.constexpr, MANTISSA: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, FEEDBACK: tl.constexpr, SUM: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Tiles tile0, tile0 + 1, ...: `NB` per program; without FULL the narrow last tile, with rows of `lanes`."""
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    width = 64 if FULL else lanes
    CALM: tl.constexpr = FULL & (not FEEDBACK)  # see gpu/encode.py
    base = (tl.minimum(tile, tiles - 1) if CALM else tile)[:, None].to(tl.int64) * 512 + lane
    here = live[:, None] & (lane < width)
    raw, e, p = compensated(x, residual, alpha, base, width, here, n, FEEDBACK, FULL, CALM)
    rows = p
    if MODE == FUSED:
        rows, _ = fused_scales(p, scales, tile, live, 0.0, MAX, SIZE, NB)
    elif MODE != EQUAL:
        one, _ = of_tiles(scales, scales, tile, live, size, MODE, SIZE, 1)
        rows = eight(one)
    DEEP: tl.constexpr = 1 if MODE == EQUAL else 8 if MODE != FUSED else SIZE // 64 if SIZE > 64 else 1
    s, y, power = rows[0], rows[0], rows[0]
    code = ()
    for r in tl.static_range(8):
        there = here if FULL else here & (base + r * width < n)
        scale = rows[r]
        if MODE == EQUAL:
            scale, _ = looked_up(scales, scales, 0, 0, base + r * width, live, size, MODE, SIZE, 1)
        if r % DEEP == 0:  # rows of one block share it
            s, y, power = reciprocal(scale)
        q = rounded(p[r], s, y, power, TOP, BIAS, MANTISSA, WIDTH)
        if not FULL:
            q = tl.where(there, q, 0)
        code = code + (q,)
        if FEEDBACK:
            # Decoded to a zero: nothing sent is 0, not -0.
            sent = value(q, BIAS, MANTISSA, WIDTH) * step_of(scale, TOP) + 0.0
            now = e[r] * beta + (raw[r] - sent)
            tl.store(residual + base + r * width, tl.where(now == now, now, e[r]), mask=there)
    total = store(code, codes, first, tile, lane, width, live, here, NB, WIDTH, False, FULL)
    if SUM:
        tl.store(partial + tl.program_id(0), total)


@Ready
@triton.jit(do_not_specialize=["tile0", "lanes", "size"])
def decode(
    s0, s1, s2, s3, s4, s5, s6, s7,
    c0, c1, c2, c3, c4, c5, c6, c7,
    out, n, tiles, tile0, lanes, size, weight,
    TOP: tl.constexpr, BIAS: tl.constexpr, MANTISSA: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, COUNT: tl.constexpr, FRESH: tl.constexpr, FULL: tl.constexpr, NATIVE: tl.constexpr,
    NB: tl.constexpr,
):  # fmt: skip
    """Tiles tile0, tile0 + 1, ...: `NB` per program; COUNT payloads, their scales and codes given one by one.

    NATIVE: the processor converts e4m3.
    """
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    width = 64 if FULL else lanes
    base = tile[:, None].to(tl.int64) * 512 + lane
    here = live[:, None] & (lane < width)
    sides = (s0, s1, s2, s3, s4, s5, s6, s7)
    codes = (c0, c1, c2, c3, c4, c5, c6, c7)
    rows = so_far(out, base, width, here, n, FRESH, FULL, NB)
    for i in tl.static_range(COUNT):
        rows = add_one(
            rows, sides[i], codes[i], tile, lane, width, live, here, base, size, weight,
            TOP, BIAS, MANTISSA, WIDTH, MODE, SIZE, FULL, NATIVE, NB,
        )  # fmt: skip
    write(out, rows, base, width, here, n, FULL)


@triton.jit
def spread(scales, tile, live, TOP: tl.constexpr, ROW: tl.constexpr, SIZE: tl.constexpr, NB: tl.constexpr):
    """The steps of row ROW of tiles whose blocks have SIZE = 1 to 32 elements: one division per block, not per lane."""
    PER_ROW: tl.constexpr = 64 // SIZE
    COUNT: tl.constexpr = NB * PER_ROW
    block = tile[:, None].to(tl.int64) * (512 // SIZE) + ROW * PER_ROW + tl.arange(0, PER_ROW)[None, :]
    there = live[:, None] & (tl.arange(0, PER_ROW)[None, :] >= 0)
    one = tl.load(scales + tl.reshape(block, [COUNT, 1]), mask=tl.reshape(there, [COUNT, 1]), other=0.0)
    return tl.reshape(tl.broadcast_to(step_of(one, TOP), [COUNT, SIZE]), [NB, 64])


@triton.jit
def add_one(
    rows, scales, codes, tile, lane, width, live, here, base, size, weight,
    TOP: tl.constexpr, BIAS: tl.constexpr, MANTISSA: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, FULL: tl.constexpr, NATIVE: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """The rows with one payload added."""
    HALVES: tl.constexpr = FULL & (MANTISSA == 2)  # measured: it does not pay for the others
    E4M3: tl.constexpr = FULL & (MANTISSA == 3) & NATIVE
    if E4M3:
        planes = load_bytes(codes, tile, lane, live, WIDTH)
    elif HALVES:
        planes = load_words(codes, tile, live, WIDTH)
    else:
        planes = load(codes, tile, lane, width, live, here, NB, WIDTH, FULL)
    step = rows[0]
    if (MODE != FUSED) & (MODE != EQUAL):
        one, _ = of_tiles(scales, scales, tile, live, size, MODE, SIZE, 1)
        step = step_of(one, TOP)
    out = ()
    for r in tl.static_range(8):
        if MODE == FUSED:
            if SIZE < 64:
                step = spread(scales, tile, live, TOP, r, SIZE, NB)
            elif r % (SIZE // 64) == 0:  # rows of one block have one step
                one, _ = inside(scales, tile, lane, live, r, SIZE, 1)
                step = step_of(one, TOP)
        elif MODE == EQUAL:
            one, _ = looked_up(scales, scales, 0, 0, base + r * width, live, size, MODE, SIZE, 1)
            step = step_of(one, TOP)
        if E4M3:
            v = planes[r].to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            v = of_words(planes, r, NB) if HALVES else value(field(planes, r, WIDTH), BIAS, MANTISSA, WIDTH)
        out = out + (rows[r] + (v * step) * weight,)
    return out
