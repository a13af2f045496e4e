"""Tiles of 512 elements in Triton: rows into packed planes and back, with the checksum's sum of the words on the way.

`rows` are the eight rows of some tiles, each (tiles, 64). Plane j of a tile is byte j of the number that each lane's
eight fields make (kernels/spec.py); four lanes of a plane are one word of the payload.
"""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels import checksum

STEP, START = tl.constexpr(checksum.STEP), tl.constexpr(checksum.START)


@triton.jit
def keyed(word, index):
    """w_i k_i of words (int32) with these indices, as int64 (kernels/checksum.py)."""
    z = (index >> 1).to(tl.uint64) * STEP + START
    low = z & 0xFFFFFFFF
    both = z ^ (low * low)
    k = tl.where((index & 1) == 0, both, both >> 32) & 0xFFFFFFFF
    return (word.to(tl.uint32, bitcast=True).to(tl.uint64) * k).to(tl.int64)


@triton.jit
def plane(rows, J: tl.constexpr, WIDTH: tl.constexpr):
    """Byte J of every lane's number, int32."""
    byte = tl.zeros_like(rows[0])
    for r in tl.static_range(8):
        low = r * WIDTH - 8 * J  # the field's lowest bit, counted from the byte's
        if (low > -WIDTH) & (low < 8):
            byte = byte | (rows[r] << low if low >= 0 else rows[r] >> -low)
    return byte & 255


@triton.jit
def masked(rows, WIDTH: tl.constexpr):
    """Codes as fields: the low bits of two's complement."""
    out = ()
    for r in tl.static_range(8):
        out = out + (rows[r] & ((1 << WIDTH) - 1),)
    return out


@triton.jit
def as_words(byte, NB: tl.constexpr):
    """Four lanes' bytes as one word: (tiles, 64) int32 to (tiles, 16)."""
    return tl.sum(tl.reshape(byte, [NB, 16, 4]) << (tl.arange(0, 4) * 8)[None, None, :], axis=2)


@triton.jit
def store(
    rows, out, first, tile, lane, lanes, live, inside, NB: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr
):
    """Write the planes of full tiles as words, or those of the narrow last tile as bytes; returns the sum, int64."""
    if FULL:
        word = tl.arange(0, 16)[None, :]
        total = tl.zeros([NB, 16], tl.int64)
        for j in tl.static_range(WIDTH):
            w = as_words(plane(rows, j, WIDTH), NB)
            at = tile[:, None].to(tl.int64) * (16 * WIDTH) + j * 16 + word
            tl.store(out + at, w, mask=live[:, None])
            total += tl.where(live[:, None], keyed(w, at + first), 0)
        return tl.sum(tl.sum(total, axis=1), axis=0)
    else:
        bytes_ = out.to(tl.pointer_type(tl.uint8))
        sum_ = tl.zeros([NB, 64], tl.int64)
        for j in tl.static_range(WIDTH):
            byte = plane(rows, j, WIDTH)
            at = tile[:, None].to(tl.int64) * (64 * WIDTH) + j * lanes + lane
            tl.store(bytes_ + at, byte.to(tl.uint8), mask=inside)
            w = byte << ((at % 4) * 8).to(tl.int32)
            sum_ += tl.where(inside, keyed(w, at // 4 + first), 0)
        return tl.sum(tl.sum(sum_, axis=1), axis=0)


@triton.jit
def load(codes, tile, lane, lanes, inside, WIDTH: tl.constexpr):
    """The planes of tiles, as a tuple of (tiles, 64) int32; `codes` points at bytes."""
    planes = ()
    for j in tl.static_range(WIDTH):
        at = tile[:, None].to(tl.int64) * (64 * WIDTH) + j * lanes + lane
        planes = planes + (tl.load(codes + at, mask=inside, other=0).to(tl.int32),)
    return planes


@triton.jit
def summed(planes, first, tile, lane, lanes, inside, WIDTH: tl.constexpr):
    """The checksum's sum of planes that were loaded, per lane."""
    total = tl.zeros_like(planes[0]).to(tl.int64)
    for j in tl.static_range(WIDTH):
        at = tile[:, None].to(tl.int64) * (64 * WIDTH) + j * lanes + lane
        total += tl.where(inside, keyed(planes[j] << ((at % 4) * 8).to(tl.int32), at // 4 + first), 0)
    return total


@triton.jit
def field(planes, R: tl.constexpr, WIDTH: tl.constexpr):
    """Row R of fields, from the planes that hold it."""
    code = tl.zeros_like(planes[0])
    for j in tl.static_range(WIDTH):
        low = R * WIDTH - 8 * j
        if (low > -WIDTH) & (low < 8):
            code = code | (planes[j] >> low if low >= 0 else planes[j] << -low)
    return code & ((1 << WIDTH) - 1)
