"""Symbols of at most four bits, several to a byte, which rANS then codes as one symbol: fewer steps, the same entropy.

A warp takes as long for a step whatever the symbol, and most symbols that are coded have less than a bit. The message
is as long as before, because frequencies of bytes are at least as fine as products of their symbols' frequencies.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.rans_plan import FORM, JOINED
from thinwire.kernels.gpu.rans_read import BAD_SYMBOL
from thinwire.kernels.gpu.ready import Ready

BLOCK = 2048  # bytes of several symbols that a program makes or reads


@Ready
@triton.jit(do_not_specialize=["n"])
def join(symbols, n, out, bad, WIDTH: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Bytes of EACH symbols, the first lowest; `bad` is set if one does not fit WIDTH bits."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * EACH)
    i = first + tl.arange(0, BLOCK * EACH)
    s = tl.load(symbols + i, mask=i < n, other=0).to(tl.int32)
    if WIDTH < 8 and tl.max(s, 0) >> WIDTH != 0:
        tl.store(bad, tl.full([], 1, tl.int64))
    fields = tl.reshape(s, [BLOCK, EACH]) << (tl.arange(0, EACH) * (8 // EACH))[None, :]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sum(fields, 1).to(tl.uint8), mask=at * EACH < n)


@Ready
@triton.jit(do_not_specialize=["n"])
def split(joined, n, plan, out, faults, WIDTH: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """The symbols of such bytes, where the frame says that they are."""
    if tl.load(plan + FORM) != JOINED:
        return
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(joined + at, mask=at * EACH < n, other=0).to(tl.int32)
    shift = (tl.arange(0, EACH) * (8 // EACH))[None, :]
    fields = (tl.broadcast_to(b[:, None], [BLOCK, EACH]) >> shift) & ((1 << (8 // EACH)) - 1)
    i = tl.program_id(0).to(tl.int64) * (BLOCK * EACH) + tl.arange(0, BLOCK * EACH)
    s = tl.reshape(fields, [BLOCK * EACH])
    s = tl.where(i < n, s, 0)
    if tl.max(s, 0) >> WIDTH != 0:
        tl.atomic_min(faults, BAD_SYMBOL)
    tl.store(out + i, s.to(tl.uint8), mask=i < n)
