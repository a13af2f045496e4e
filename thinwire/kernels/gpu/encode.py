"""Encode in Triton: compensate, scale, round, pack, keep the error and sum for the checksum, in one pass over memory.

Blocks of 1 to 512 elements find their scales in the same pass; other blocks are scaled before (`gpu/scales.py`) and
looked up here (`gpu/blocks.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.blocks import FUSED, RAGGED, TILE, eight, inside, looked_up, of_tiles, reached
from thinwire.kernels.gpu.elements import (
    CLIPPED,
    DITHER,
    L2,
    MEAN,
    NATURAL,
    NONE,
    RANGE,
    SIDES,
    SIGNED,
    UNSIGNED,
    factors,
    noise,
    noisy,
    quantise,
    value,
    words,
)
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.scales import fused_scales
from thinwire.kernels.gpu.tiles import as_words, compensated, highest, plane, put, store


@triton.jit
def natural(code, p, raw, codes, first, tile, lane, lanes, live, here, n, base, NB: tl.constexpr, FULL: tl.constexpr):
    """Tiles of eight exponent rows and one row of packed signs, 576 bytes; returns the sum."""
    signs = ()
    for r in tl.static_range(8):
        held = tl.where(p[r] == p[r], p[r], raw[r])  # a GPU's own NaN has no sign
        s = (held.to(tl.int32, bitcast=True) >> 31) & 1
        signs = signs + (s if FULL else tl.where(here & (base + r * lanes < n), s, 0),)
    packed = plane(signs, 0, 1)
    rows = ()
    for j in tl.static_range(8):
        rows = rows + (as_words(code[j], NB) if FULL else code[j],)
    rows = rows + (as_words(packed, NB) if FULL else packed,)
    return put(rows, codes, first, tile, lane, lanes, live, here, NB, 9, FULL)


@triton.jit
def scaled_here(p, scales, tile, lane, live, clip, NORM: tl.constexpr, SIZE: tl.constexpr, NB: tl.constexpr):
    """The scales of blocks of SIZE = 1 to 512 elements, stored, and those of each of the eight rows."""
    rows_a, rows_b = fused_scales(p, scales, tile, live, clip, NORM, SIZE, NB)
    if (NORM == L2) | (NORM == MEAN) | (NORM == CLIPPED):
        # Sums by halving end in a layout of their own; read back, scales lie as the elements do.
        tl.debug_barrier()
        rows_a, rows_b = (), ()
        for r in tl.static_range(8):
            a, b = inside(scales, tile, lane, live, r, SIZE, 1)
            rows_a = rows_a + (a,)
            rows_b = rows_b + (b,)
    return rows_a, rows_b


@triton.jit
def rounded(
    raw, e, p, a, b, residual, scales, codes, starts, begin, end, n, tile, lane, width, live, here, base, size, first,
    key, beta, lo_end, hi_end,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, FRACTION: tl.constexpr,
    STOCHASTIC: tl.constexpr, MODE: tl.constexpr, SIZE: tl.constexpr, FEEDBACK: tl.constexpr, FULL: tl.constexpr,
    NB: tl.constexpr,
):  # fmt: skip
    """Round, keep the error and pack; a[r] and b[r] are the scales of row r, unless MODE says to look them up."""
    UNIT_: tl.constexpr = 2.0**FRACTION if STOCHASTIC else 1.0
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1
    # Codes that are the highest bits of what they are cut from are packed from there, unless they are needed besides.
    ONE_BIT: tl.constexpr = (KIND == UNSIGNED) & (WIDTH == 1) & (FRACTION == 30)
    AT_TOP: tl.constexpr = ONE_BIT | ((KIND == SIGNED) & (FRACTION == 32 - WIDTH) & (8 % WIDTH == 0) & (WIDTH < 8))
    HIGHEST: tl.constexpr = AT_TOP & FULL & (STOCHASTIC and not FEEDBACK)
    u = noise(tile[:, None] * 64 + lane, key, p[0]) if STOCHASTIC else p
    code = ()
    for r in tl.static_range(8):
        if (MODE == FUSED) | (MODE == TILE):
            sa, sb = a[r], b[r]
        else:
            sa, sb = looked_up(scales, starts, begin, end, base + r * width, live, size, MODE, SIZE, TWO)
        k, lo, pre, step = factors(sa, sb, KIND, NORM, LEVELS, UNIT_, lo_end, hi_end)
        if HIGHEST:
            q = noisy(p[r], u[r], k, lo, pre, KIND, LEVELS, FRACTION)
        else:
            q = quantise(p[r], u[r], k, lo, pre, KIND, LEVELS, FRACTION, STOCHASTIC)
        there = here if FULL else here & (base + r * width < n)
        if not FULL:
            q = tl.where(there, q, 0)
        code = code + (q,)
        if FEEDBACK:
            sign = (p[r].to(tl.int32, bitcast=True) >> 31) & 1
            now = e[r] * beta + (raw[r] - value(q, sign, lo, step, KIND, LEVELS))
            tl.store(residual + base + r * width, tl.where(now == now, now, e[r]), mask=there)
    if KIND == NATURAL:
        return natural(code, p, raw, codes, first, tile, lane, width, live, here, n, base, NB, FULL)
    elif HIGHEST:
        return put(highest(code, WIDTH, NB), codes, first, tile, lane, width, live, here, NB, WIDTH, FULL)
    else:
        SIGN_BIT: tl.constexpr = (KIND == SIGNED) | (KIND == DITHER)
        return store(code, codes, first, tile, lane, width, live, here, NB, WIDTH, SIGN_BIT, FULL)


@triton.jit
def turned(program, programs, PER: tl.constexpr):
    """Which program's tiles this one takes, PER to a segment: the ends of all segments first, their beginnings last.

    The pass that found the scales has read all segments at the same time, and their ends are still in the cache.
    """
    whole = programs // PER * PER
    segments = tl.maximum(programs // PER, 1)
    other = program % segments * PER + (PER - 1 - program // segments)
    return tl.where(program < whole, other, program)


@Ready
@triton.jit(do_not_specialize=["k0", "k1", "c0", "c1", "c2", "c3", "first", "tile0", "lanes", "size"])
def encode(
    x, residual, scales, codes, partial, starts, reach, n, tiles, tile0, lanes, size, first, k0, k1, c0, c1, c2, c3,
    alpha, beta, lo_end, hi_end, clip,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, FRACTION: tl.constexpr,
    STOCHASTIC: tl.constexpr, MODE: tl.constexpr, SIZE: tl.constexpr, FEEDBACK: tl.constexpr, SUM: tl.constexpr,
    FULL: tl.constexpr, TURNED: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Tiles tile0, tile0 + 1, ...: `NB` per program; without FULL the narrow last tile, with rows of `lanes`."""
    program = tl.program_id(0)
    if TURNED:
        program = turned(program, tl.num_programs(0), 128 // NB)
    tile = tile0 + program * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    width = 64 if FULL else lanes
    # A dead tile reads the last one again: loads without masks leave no zeros to be set before.
    CALM: tl.constexpr = FULL & (not FEEDBACK)
    base = (tl.minimum(tile, tiles - 1) if CALM else tile)[:, None].to(tl.int64) * 512 + lane
    here = live[:, None] & (lane < width)
    key = words(k0, k1, c0, c1, c2, c3)
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1

    raw, e, p = compensated(x, residual, alpha, base, width, here, n, FEEDBACK, FULL, CALM)

    begin, end = 0, 0
    if MODE == RAGGED:
        begin, end, alone = reached(reach, tile, live)
        if alone:
            a, b = of_tiles(scales, reach, tile, live, size, MODE, SIZE, TWO)
            total = rounded(
                raw, e, p, eight(a), eight(b), residual, scales, codes, starts, begin, end, n, tile, lane, width, live,
                here, base, size, first, key, beta, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, FRACTION, STOCHASTIC,
                TILE, SIZE, FEEDBACK, FULL, NB,
            )  # fmt: skip
        else:
            total = rounded(
                raw, e, p, p, p, residual, scales, codes, starts, begin, end, n, tile, lane, width, live, here, base,
                size, first, key, beta, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, FRACTION, STOCHASTIC, RAGGED, SIZE,
                FEEDBACK, FULL, NB,
            )  # fmt: skip
    else:
        rows_a, rows_b = p, p
        if NORM != NONE:
            if MODE == FUSED:
                rows_a, rows_b = scaled_here(p, scales, tile, lane, live, clip, NORM, SIZE, NB)
            elif MODE == TILE:
                a, b = of_tiles(scales, reach, tile, live, size, MODE, SIZE, TWO)
                rows_a, rows_b = eight(a), eight(b)
        HOW: tl.constexpr = MODE if NORM != NONE else FUSED
        total = rounded(
            raw, e, p, rows_a, rows_b, residual, scales, codes, starts, begin, end, n, tile, lane, width, live,
            here, base, size, first, key, beta, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, FRACTION, STOCHASTIC,
            HOW, SIZE, FEEDBACK, FULL, NB,
        )  # fmt: skip
    if SUM:
        tl.store(partial + tl.program_id(0), total)
