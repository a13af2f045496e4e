"""The small passes in Triton: packing, folding, noise, and a copy that finds out whether all is finite."""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.elements import noise, words
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.tiles import field, load, masked, store


@Ready
@triton.jit(do_not_specialize=["tile0", "lanes"])
def pack(codes, out, n, tiles, tile0, lanes, WIDTH: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr):
    """One-byte codes into planar fields."""
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    width = 64 if FULL else lanes
    base = tile[:, None].to(tl.int64) * 512 + lane
    inside = live[:, None] & (lane < width)
    rows = ()
    for r in tl.static_range(8):
        here = inside if FULL else inside & (base + r * width < n)
        rows = rows + (tl.load(codes + base + r * width, mask=here, other=0).to(tl.int32),)
    store(masked(rows, WIDTH), out, 0, tile, lane, width, live, inside, NB, WIDTH, False, FULL)


@Ready
@triton.jit(do_not_specialize=["tile0", "lanes"])
def unpack(packed, out, n, tiles, tile0, lanes, WIDTH: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr):
    """Planar fields into one-byte codes."""
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    width = 64 if FULL else lanes
    base = tile[:, None].to(tl.int64) * 512 + lane
    live = tile < tiles
    inside = live[:, None] & (lane < width)
    planes = load(packed, tile, lane, width, live, inside, NB, WIDTH, FULL)
    for r in tl.static_range(8):
        here = inside if FULL else inside & (base + r * width < n)
        fields = field(planes, r, WIDTH) & ((1 << WIDTH) - 1)
        tl.store(out + base + r * width, fields.to(tl.uint8), mask=here)


@Ready
@triton.jit(do_not_specialize=["k0", "k1", "c0", "c1", "c2", "c3", "tile0", "lanes"])
def draw(out, n, tiles, tile0, lanes, k0, k1, c0, c1, c2, c3, FULL: tl.constexpr, NB: tl.constexpr):
    """The 32-bit noise of n elements, as int64."""
    tile = tile0 + tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    width = 64 if FULL else lanes
    base = tile[:, None].to(tl.int64) * 512 + lane
    inside = (tile < tiles)[:, None] & (lane < width)
    lanes_ = tile[:, None] * 64 + lane
    u = noise(lanes_, words(k0, k1, c0, c1, c2, c3), lanes_.to(tl.float32))
    for r in tl.static_range(8):
        here = inside if FULL else inside & (base + r * width < n)
        tl.store(out + base + r * width, u[r].to(tl.int64), mask=here)


@Ready
@triton.jit
def fold(codes, n, BACK: tl.constexpr, SIZE: tl.constexpr):
    """Signed bytes 0, -1, 1, -2, ... as symbols 0, 1, 2, 3, ..., in place, or BACK."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    v = tl.load(codes + at, mask=at < n, other=0).to(tl.int32)
    if BACK:
        v = (v >> 1) ^ (0 - (v & 1))
    else:
        signed = (v ^ 128) - 128
        v = (signed << 1) ^ (signed >> 7)
    tl.store(codes + at, (v & 255).to(tl.uint8), mask=at < n)
