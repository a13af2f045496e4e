"""Symbols of at most four bits, several to a byte, which rANS then codes as one symbol: fewer steps, the same entropy.

A warp takes as long for a step whatever the symbol, and most symbols that are coded have less than a bit. The message
is as long as before, because frequencies of bytes are at least as fine as products of their symbols' frequencies.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.rans_plan import FORM, INNER, JOINED, LENGTH, SOURCE, TARGET, noted, of_frame, symbols_at
from thinwire.kernels.gpu.rans_read import BAD_SYMBOL
from thinwire.kernels.gpu.ready import Ready

BLOCK = 2048  # words of symbols that a program reads or writes


@triton.jit
def gathered(w, EACH: tl.constexpr):
    """The fields of a word's bytes, side by side in its low bits: four symbols of four or two bits, eight of one."""
    if EACH == 2:
        t = w | (w >> 4)
        return (t & 0xFF) | ((t >> 8) & 0xFF00)
    elif EACH == 4:
        return (w | (w >> 6) | (w >> 12) | (w >> 18)) & 0xFF
    else:
        t = w | (w >> 7)
        t = t | (t >> 14)
        return (t | (t >> 28)) & 0xFF


@triton.jit
def scattered(b, EACH: tl.constexpr):
    """The inverse."""
    if EACH == 2:
        return (b & 0xF) | (b & 0xF0) << 4 | (b & 0xF00) << 8 | (b & 0xF000) << 12
    elif EACH == 4:
        return (b & 3) | (b & 0xC) << 6 | (b & 0x30) << 12 | (b & 0xC0) << 18
    else:
        t = (b | (b << 28)) & 0x0000000F0000000F
        t = (t | (t << 14)) & 0x0003000300030003
        return (t | (t << 7)) & 0x0101010101010101


@triton.jit
def too_large(w, WIDTH: tl.constexpr, EACH: tl.constexpr):
    """Bits of bytes that are above WIDTH."""
    seen = w | (w >> 32) if EACH == 8 else w
    return seen.to(tl.int32) & ((255 >> WIDTH << WIDTH) * 0x01010101 - (1 << 32))


@triton.jit
def tail(symbols, first, n):
    """Eight symbols from `first` on, zeros behind the last, as a word of eight bytes."""
    i = first + tl.arange(0, 8)
    s = tl.load(symbols + i, mask=i < n, other=0).to(tl.int64)
    return tl.sum(s << (8 * tl.arange(0, 8)).to(tl.int64), 0)


@Ready
@triton.jit(do_not_specialize=["stride"])
def join(frames, bad, stride, WIDTH: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Bytes of EACH symbols, the first lowest; `bad` is set if one does not fit WIDTH bits."""
    symbols, out, n = symbols_at(frames, SOURCE), symbols_at(frames, INNER), noted(frames, LENGTH)
    WORD: tl.constexpr = tl.int64 if EACH == 8 else tl.int32
    TO: tl.constexpr = tl.int16 if EACH == 2 else tl.int8
    SIZE: tl.constexpr = 8 if EACH == 8 else 4
    words = n // SIZE
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    from_, to = symbols.to(tl.pointer_type(WORD)) + i, out.to(tl.pointer_type(TO)) + i
    if (tl.program_id(0) + 1) * BLOCK <= words:  # without a mask, sixteen bytes are one load
        w = tl.load(from_)
        tl.store(to, gathered(w, EACH).to(TO))
        wrong = tl.max((too_large(w, WIDTH, EACH) != 0).to(tl.int32), 0)
    else:
        w = tl.load(from_, mask=i < words, other=0)
        tl.store(to, gathered(w, EACH).to(TO), mask=i < words)
        wrong = tl.max((too_large(w, WIDTH, EACH) != 0).to(tl.int32), 0)
    if tl.program_id(0) == 0:  # what is left behind the words
        rest = tail(symbols, words.to(tl.int64) * SIZE, n)
        wrong |= (too_large(rest, WIDTH, 8) != 0).to(tl.int32)
        at = words * SIZE // EACH
        for k in tl.static_range(2 if EACH == 2 else 1):
            if (at + k) * EACH < n:
                tl.store(
                    out + at + k, (gathered(rest if EACH == 8 else rest.to(tl.int32), EACH) >> (8 * k)).to(tl.uint8)
                )
    if wrong != 0:
        tl.store(of_frame(bad, stride, 8), tl.full([], 1, tl.int64))


@Ready
@triton.jit(do_not_specialize=["stride"])
def split(frames, plan, faults, stride, WIDTH: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """The symbols of such bytes, where the frame says that they are."""
    if tl.load(of_frame(plan, stride, 8) + FORM) != JOINED:
        return
    joined, out, n = symbols_at(frames, INNER), symbols_at(frames, TARGET), noted(frames, LENGTH)
    WORD: tl.constexpr = tl.int64 if EACH == 8 else tl.int32
    FROM: tl.constexpr = tl.uint16 if EACH == 2 else tl.uint8
    SIZE: tl.constexpr = 8 if EACH == 8 else 4
    words = n // SIZE
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    from_, to = joined.to(tl.pointer_type(FROM)) + i, out.to(tl.pointer_type(WORD)) + i
    if (tl.program_id(0) + 1) * BLOCK <= words:
        w = scattered(tl.load(from_).to(WORD), EACH)
        tl.store(to, w)
        wrong = tl.max(((w & 0x08080808) != 0).to(tl.int32), 0)
    else:
        w = scattered(tl.load(from_, mask=i < words, other=0).to(WORD), EACH)
        tl.store(to, w, mask=i < words)
        wrong = tl.max(((w & 0x08080808) != 0).to(tl.int32), 0)
    wrong = wrong if WIDTH == 3 else 0  # the others fill their fields
    if tl.program_id(0) == 0:
        first = words.to(tl.int64) * SIZE + tl.arange(0, 8)
        byte = tl.load(joined + first // EACH, mask=first < n, other=0).to(tl.int32)
        s = (byte >> (first % EACH * (8 // EACH)).to(tl.int32)) & ((1 << (8 // EACH)) - 1)
        tl.store(out + first, s.to(tl.uint8), mask=first < n)
        wrong |= (tl.max(tl.where(first < n, s, 0), 0) >> WIDTH != 0).to(tl.int32)
    if wrong != 0:
        tl.atomic_min(faults + tl.program_id(2), BAD_SYMBOL)
