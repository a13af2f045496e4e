"""Which scale an element has, in Triton: found with its tile, or looked up by block."""

from __future__ import annotations

import triton
import triton.language as tl

FUSED, EQUAL, RAGGED, TILE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""How: blocks inside a tile; equal blocks of any size; boundaries given one by one; tiles inside a block."""


@triton.jit
def eight(t):
    """The same for all rows of a tile."""
    return (t, t, t, t, t, t, t, t)


@triton.jit
def at(scales, block, there, TWO: tl.constexpr):
    """Both scales of blocks; the same where a block has one."""
    a = tl.load(scales + block * TWO, mask=there, other=0.0)
    b = tl.load(scales + block * TWO + 1, mask=there, other=0.0) if TWO == 2 else a
    return a, b


@triton.jit
def inside(scales, tile, lane, live, ROW: tl.constexpr, SIZE: tl.constexpr, TWO: tl.constexpr):
    """Both scales of row ROW of tiles whose blocks have SIZE = 1 to 512 elements."""
    block = tile[:, None].to(tl.int64) * (512 // SIZE)
    if SIZE >= 64:
        return at(scales, block + ROW * 64 // SIZE, live[:, None], TWO)
    else:
        return at(scales, block + ROW * (64 // SIZE) + lane // SIZE, live[:, None] & (lane >= 0), TWO)


@triton.jit
def of_tiles(scales, reach, tile, live, size, MODE: tl.constexpr, SIZE: tl.constexpr, TWO: tl.constexpr):
    """Both scales of tiles that lie inside one block each, (tiles, 1)."""
    if MODE == RAGGED:
        block = tl.load(reach + 2 * tile, mask=live, other=0).to(tl.int64)
    elif SIZE > 0:
        block = tile.to(tl.int64) * 512 // SIZE
    else:
        block = tile.to(tl.int64) * 512 // size
    return at(scales, block[:, None], live[:, None], TWO)


@triton.jit
def reached(reach, tile, live):
    """The first block that tiles reach into, the last, and whether each tile lies inside one."""
    first = tl.load(reach + 2 * tile, mask=live, other=0)
    last = tl.load(reach + 2 * tile + 1, mask=live, other=0)
    begin = tl.min(tl.where(live, first, 2147483647), axis=0)
    return begin, tl.max(last, axis=0), tl.max(last - first, axis=0) == 0


@triton.jit
def walk(scales, starts, begin, end, element, WHICH: tl.constexpr, TWO: tl.constexpr):
    """The scale of every element of tiles that reach from block `begin` to block `end`."""
    found = tl.zeros_like(element).to(tl.float32)
    for b in range(begin, end + 1):
        found = tl.where(element >= tl.load(starts + b), tl.load(scales + b * TWO + WHICH), found)
    return found


@triton.jit
def looked_up(
    scales, starts, begin, end, element, live, size, MODE: tl.constexpr, SIZE: tl.constexpr, TWO: tl.constexpr
):
    """Both scales of every element of one row."""
    if MODE == RAGGED:
        a = walk(scales, starts, begin, end, element, 0, TWO)
        b = walk(scales, starts, begin, end, element, 1, TWO) if TWO == 2 else a
        return a, b
    else:
        block = element // SIZE if SIZE > 0 else element // size
        return at(scales, block, live[:, None], TWO)
