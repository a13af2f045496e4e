"""The checksum in Triton: the sum over bytes, and the header of a payload with its checksum, written on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels import checksum
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.tiles import keyed

MIX = tl.constexpr(checksum.MIX)


@Ready
@triton.jit(do_not_specialize=["first"])
def total(data, partial, n, first, WORDS: tl.constexpr):
    """The sum of WORDS words per program; `data` are words, of which the last may end after `n` bytes."""
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    w = tl.load(data + at, mask=4 * at + 4 <= n, other=0)
    tl.store(partial + tl.program_id(0), tl.sum(keyed(w, at + first), axis=0))


@Ready
@triton.jit(do_not_specialize=["first"])
def ragged_total(data, partial, n, first, BYTES: tl.constexpr):
    """The same of bytes at any address."""
    at = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    byte = tl.load(data + at, mask=at < n, other=0).to(tl.int32)
    tl.store(partial + tl.program_id(0), tl.sum(keyed(byte << ((at % 4) * 8).to(tl.int32), at // 4 + first), axis=0))


@triton.jit
def finish(s):
    """The 32 bits of the checksum of a sum."""
    s = s.to(tl.uint64, bitcast=True)
    s = (s ^ (s >> 32)) * MIX
    s = (s ^ (s >> 29)) * MIX
    return (s >> 32).to(tl.uint32).to(tl.int32, bitcast=True)


@triton.jit
def added(partial, count, STEP: tl.constexpr):
    """The sum of `count` partial sums."""
    total = tl.zeros([STEP], tl.int64)
    for at in range(0, count, STEP):
        here = at + tl.arange(0, STEP)
        total += tl.load(partial + here, mask=here < count, other=0)
    return tl.sum(total, axis=0)


@triton.jit
def summed(data, words, STEP: tl.constexpr):
    """The sum of as many `words` after a header."""
    total = tl.zeros([STEP], tl.int64)
    for at in range(0, words, STEP):
        here = at + tl.arange(0, STEP)
        total += keyed(tl.load(data + 8 + here, mask=here < words, other=0), 8 + here)
    return tl.sum(total, axis=0)


@Ready
@triton.jit(do_not_specialize=["words", "count", "more", "w0", "w1", "w2", "w3", "w4", "w5", "w6"])
def seal(data, words, partial, count, others, more, w0, w1, w2, w3, w4, w5, w6, STEP: tl.constexpr):
    """Write seven words of a header and the checksum: of `words` after it, and of the rest, whose sums are given."""
    place = tl.arange(0, 8)
    word = tl.zeros([8], tl.int32)
    head = (w0, w1, w2, w3, w4, w5, w6)
    for i in tl.static_range(7):
        word = tl.where(place == i, head[i], word)
    s = tl.sum(keyed(word, place), axis=0) + summed(data, words, STEP)
    s += added(partial, count, STEP) + added(others, more, STEP)
    tl.store(data + place, tl.where(place == 7, finish(s), word))
