"""Encode in Triton: compensate, scale, round, pack, keep the error and sum for the checksum, in one pass over memory.

Blocks of 1 to 512 elements find their scales in the same pass; other blocks are scaled before (`gpu/scales.py`) and
looked up here, by division for equal blocks and by a walk over the boundaries inside a tile for ragged ones.
"""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.elements import NATURAL, NONE, RANGE, SIDES, factors, noise, quantise, value, words
from thinwire.kernels.gpu.scales import fused_scales
from thinwire.kernels.gpu.tiles import as_words, keyed, masked, plane, store

FUSED, EQUAL, RAGGED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def ragged(scales, starts, begin, end, element, WHICH: tl.constexpr, TWO: tl.constexpr):
    """The scale of every element of tiles that reach over the blocks begin .. end - 1."""
    found = tl.zeros_like(element).to(tl.float32)
    for b in range(begin, end):
        here = tl.load(scales + b * TWO + WHICH)
        found = tl.where(element >= tl.load(starts + b), here, found)
    return found


@triton.jit
def looked_up(
    scales, starts, reach, tile, element, live, size, MODE: tl.constexpr, SIZE: tl.constexpr, TWO: tl.constexpr
):
    """Both scales of every element of one row."""
    if MODE == RAGGED:
        first = tl.load(reach + tile, mask=live, other=0)
        last = tl.load(reach + tile + 1, mask=live, other=-1)
        begin = tl.min(tl.where(live, first, 2147483647), axis=0)
        end = tl.max(last, axis=0) + 1
        a = ragged(scales, starts, begin, end, element, 0, TWO)
        b = ragged(scales, starts, begin, end, element, 1, TWO) if TWO == 2 else a
        return a, b
    else:
        if SIZE > 0:
            block = element // SIZE
        else:
            block = element // size
        a = tl.load(scales + block * TWO, mask=live[:, None], other=0.0)
        b = tl.load(scales + block * TWO + 1, mask=live[:, None], other=0.0) if TWO == 2 else a
        return a, b


@triton.jit(do_not_specialize=["k0", "k1", "c0", "c1", "c2", "c3", "first", "tile0", "lanes", "size"])
def encode(
    x,
    residual,
    scales,
    codes,
    partial,
    starts,
    reach,
    n,
    tiles,
    tile0,
    lanes,
    size,
    first,
    k0,
    k1,
    c0,
    c1,
    c2,
    c3,
    alpha,
    beta,
    lo_end,
    hi_end,
    clip,
    KIND: tl.constexpr,
    NORM: tl.constexpr,
    LEVELS: tl.constexpr,
    WIDTH: tl.constexpr,
    FRACTION: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    MODE: tl.constexpr,
    SIZE: tl.constexpr,
    FEEDBACK: tl.constexpr,
    SUM: tl.constexpr,
    FULL: tl.constexpr,
    NB: tl.constexpr,
):
    """Tiles tile0, tile0 + 1, ...: `NB` per program; without FULL the narrow last tile, with rows of `lanes`."""
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    width = 64 if FULL else lanes
    base = tile[:, None].to(tl.int64) * 512 + lane
    inside = live[:, None] & (lane < width)
    key = words(k0, k1, c0, c1, c2, c3)
    UNIT_: tl.constexpr = 2.0**FRACTION if STOCHASTIC else 1.0
    TWO: tl.constexpr = 2 if (NORM == RANGE) | (NORM == SIDES) else 1

    raw, p = (), ()
    for r in tl.static_range(8):
        here = inside if FULL else inside & (base + r * width < n)
        v = tl.load(x + base + r * width, mask=here, other=0.0).to(tl.float32)
        raw = raw + (v,)
        if FEEDBACK:
            v = v + tl.load(residual + base + r * width, mask=here, other=0.0) * alpha
        p = p + (v,)

    if (MODE == FUSED) & (NORM != NONE):
        a, b = fused_scales(p, scales, tile, live, clip, NORM, SIZE, NB)

    if STOCHASTIC:
        u = noise(tile[:, None] * 64 + lane, key)
    code = ()
    for r in tl.static_range(8):
        if MODE == FUSED:
            if NORM == NONE:
                sa, sb = p[r], p[r]
            else:
                sa, sb = a[r], b[r]
        else:
            sa, sb = looked_up(scales, starts, reach, tile, base + r * width, live, size, MODE, SIZE, TWO)
        k, lo, pre, step = factors(sa, sb, KIND, NORM, LEVELS, UNIT_, lo_end, hi_end)
        q = quantise(p[r], u[r] if STOCHASTIC else p[r], k, lo, pre, KIND, LEVELS, FRACTION, STOCHASTIC)
        q = q + tl.zeros_like(p[r]).to(tl.int32)
        if not FULL:
            q = tl.where(inside & (base + r * width < n), q, 0)
        code = code + (q,)
        if FEEDBACK:
            here = inside if FULL else inside & (base + r * width < n)
            e = tl.load(residual + base + r * width, mask=here, other=0.0)
            sign = (p[r].to(tl.int32, bitcast=True) >> 31) & 1
            now = e * beta + (raw[r] - value(q, sign, lo, step, KIND, LEVELS))
            tl.store(residual + base + r * width, tl.where(now == now, now, e), mask=here)

    if KIND == NATURAL:
        total = natural(code, p, codes, first, tile, lane, width, live, inside, n, base, NB, FULL)
    else:
        total = store(masked(code, WIDTH), codes, first, tile, lane, width, live, inside, NB, WIDTH, FULL)
    if SUM:
        tl.store(partial + tl.program_id(0), total)


@triton.jit
def natural(code, p, codes, first, tile, lane, lanes, live, inside, n, base, NB: tl.constexpr, FULL: tl.constexpr):
    """Tiles of eight exponent rows and one row of packed signs, 576 bytes; returns the sum."""
    signs = ()
    for r in tl.static_range(8):
        s = (p[r].to(tl.int32, bitcast=True) >> 31) & 1
        signs = signs + (s if FULL else tl.where(inside & (base + r * lanes < n), s, 0),)
    packed = plane(signs, 0, 1)
    if FULL:
        word = tl.arange(0, 16)[None, :]
        total = tl.zeros([NB, 16], tl.int64)
        for j in tl.static_range(9):
            w = as_words(packed if j == 8 else code[j if j < 8 else 0], NB)
            at = tile[:, None].to(tl.int64) * 144 + j * 16 + word
            tl.store(codes + at, w, mask=live[:, None])
            total += tl.where(live[:, None], keyed(w, at + first), 0)
        return tl.sum(tl.sum(total, axis=1), axis=0)
    else:
        bytes_ = codes.to(tl.pointer_type(tl.uint8))
        total = tl.zeros([NB, 64], tl.int64)
        for j in tl.static_range(9):
            byte = packed if j == 8 else code[j if j < 8 else 0]
            at = tile[:, None].to(tl.int64) * 576 + j * lanes + lane
            tl.store(bytes_ + at, byte.to(tl.uint8), mask=inside)
            total += tl.where(inside, keyed(byte << ((at % 4) * 8).to(tl.int32), at // 4 + first), 0)
        return tl.sum(tl.sum(total, axis=1), axis=0)
