"""What a decoder must know of a rANS message: its tables, where its chunks are, what every slot means.

Nothing is trusted: a byte is read only where the message has one, and what cannot be a message sets a fault.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.rans_plan import (
    CODED,
    COUNT,
    ESCAPE,
    ESCAPED,
    FIELDS,
    FORM,
    INNERS,
    JOINED,
    KIND,
    LANES,
    LARGEST_CHUNK,
    LAST,
    LENGTH,
    LOG,
    NARROW,
    ONE,
    PLAIN,
    PLAN,
    RANS,
    SIZES,
    SMALLEST_CHUNK,
    SOURCE,
    STATES,
    SYMBOL,
    TAIL,
    TOTAL,
    WIDE,
    N,
    bytes_at,
    noted,
    of_frame,
)
from thinwire.kernels.gpu.ready import Ready

# See thinwire.codecs.native.FAULTS.
TRUNCATED, LEFT_OVER, BAD_CODE = tl.constexpr(-1), tl.constexpr(-2), tl.constexpr(-3)
BAD_SYMBOL, BAD_COUNT, BAD_TABLE = tl.constexpr(-4), tl.constexpr(-5), tl.constexpr(-6)


@triton.jit
def byte(data, at, end):
    """A byte, or 0 past the end."""
    return tl.load(data + at, mask=at < end, other=0).to(tl.int64)


@triton.jit
def get32(data, at, end):
    """Four bytes at any address."""
    low = byte(data, at, end) | byte(data, at + 1, end) << 8
    return low | byte(data, at + 2, end) << 16 | byte(data, at + 3, end) << 24


@triton.jit
def next32(data, at, end):
    """Four bytes, the first highest."""
    high = byte(data, at, end) << 24 | byte(data, at + 1, end) << 16
    return (high | byte(data, at + 2, end) << 8 | byte(data, at + 3, end)).to(tl.uint64)


@triton.jit
def gamma(window):
    """The number of the gamma code of at most 25 bits that a window of 64 starts with, and its bits; 0 for none."""
    top = (window >> 32).to(tl.uint32)
    # The exponent of a float counts leading zeros; 20 bits are exact in one.
    exponent = ((top >> 12).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    known = (top >> 19) > 0
    zeros = tl.where(known, 19 - exponent, 0)
    k = tl.where(known, (top >> (31 - 2 * zeros).to(tl.uint32)).to(tl.int32), 0)
    return k, 2 * zeros + 1


@triton.jit
def read_table(data, at, end, limit, freq, plan):
    """Frequencies to `freq`; returns where they end and a fault.

    Codes are taken from a window of bits, so that no code waits for the memory of the one before.
    """
    window = next32(data, at, end) << 32 | next32(data, at + 4, end)
    ahead = next32(data, at + 8, end)
    last, used = gamma(window)
    window = window << used.to(tl.uint64)
    have = -used + 64
    bit = at * 8 + used
    at += 12
    fault = tl.where((last == 0) | (last > limit), BAD_TABLE, 0).to(tl.int32)
    total = tl.zeros([], tl.int32)
    near = tl.zeros([], tl.int32)  # the frequency of the last odd symbol: every neighbour is one
    symbol = tl.full([], 1, tl.int32)
    while (symbol < last) & (fault == 0):
        d, used = gamma(window)
        window = window << used.to(tl.uint64)
        have -= used
        bit += used
        if have < 32:
            window |= ahead << (32 - have).to(tl.uint64)
            ahead = next32(data, at, end)
            have += 32
            at += 4
        f = near + tl.where((d & 1) == 1, d >> 1, -(d >> 1))
        total += f
        fault = tl.where((d == 0) | (f < 0) | (f >= TOTAL) | (total > TOTAL), BAD_TABLE, 0).to(tl.int32)
        tl.store(freq + symbol, f)
        near = tl.where((symbol & 1) == 1, f, near)
        symbol += 1
    fault = tl.where((fault == 0) & (total == 0), BAD_TABLE, fault).to(tl.int64)
    fault = tl.where(bit > 8 * end, TRUNCATED, fault)
    tl.store(freq, -total + TOTAL)
    tl.store(plan + LAST, (last - 1).to(tl.int64))
    return (bit + 7) >> 3, fault


@triton.jit
def read_head(data, at, end, limit, freq, plan, ESCAPES: tl.constexpr):
    """The plan of the message at `at`; returns where the sizes of its chunks start, whether it escapes, a fault."""
    kind, log = byte(data, at, end), byte(data, at + 1, end)
    fault = tl.zeros([], tl.int64)
    after = at + 2
    escapes = kind < 0
    if kind == ONE:
        fault = tl.where(log >= limit, BAD_SYMBOL, tl.where(after != end, LEFT_OVER, 0)).to(tl.int64)
    else:
        escapes = (kind & ESCAPE) != 0
        bad = ((kind & ~(WIDE | ESCAPE)) != RANS) | (log < SMALLEST_CHUNK) | (log > LARGEST_CHUNK)
        if not ESCAPES:
            bad = bad | escapes
        fault = tl.where(bad, BAD_TABLE, 0).to(tl.int64)
        if fault == 0:
            after, fault = read_table(data, at + 2, end, limit, freq, plan)
    fault = tl.where(end - at < 2, TRUNCATED, fault)
    tl.store(plan + KIND, tl.where(fault == 0, tl.where(kind == ONE, ONE, RANS), 0).to(tl.int64))
    tl.store(plan + SYMBOL, log)
    tl.store(plan + LOG, tl.where(kind == ONE, SMALLEST_CHUNK, log))
    tl.store(plan + LANES, tl.where((kind & WIDE) != 0, STATES, NARROW).to(tl.int64))
    tl.store(plan + SIZES, after)
    tl.store(plan + TAIL, end)
    tl.store(plan + ESCAPED, tl.full([], -1, tl.int64))
    return after, escapes & (fault == 0), fault


@triton.jit
def find_chunks(data, plan, n, starts, sizes, BLOCK: tl.constexpr):
    """Where the chunks of a plan start and how long they are; returns a fault."""
    kind, log = tl.load(plan + KIND), tl.load(plan + LOG)
    count = ((n - 1) >> log) + 1
    fault = tl.zeros([], tl.int64)
    tl.store(plan + N, n)
    if kind == RANS:
        at, end = tl.load(plan + SIZES), tl.load(plan + TAIL)
        begin = at + 4 * (count - 1)
        fault = tl.where(begin > end, TRUNCATED, 0).to(tl.int64)
        first = tl.zeros([], tl.int64)
        while (first < count) & (fault == 0):
            i = first + tl.arange(0, BLOCK)
            size = tl.where(i < count - 1, get32(data, at + 4 * i, tl.where(i < count - 1, end, 0)), 0)
            start = begin + tl.cumsum(size, 0) - size
            size = tl.where(i == count - 1, end - start, size)
            wrong = (i < count) & ((size < 0) | (start + size > end))
            fault = tl.where(tl.sum(wrong.to(tl.int32), 0) > 0, TRUNCATED, 0).to(tl.int64)
            tl.store(starts + i, start, mask=i < count)
            tl.store(sizes + i, tl.minimum(size, 1 << 30).to(tl.int32), mask=i < count)
            begin += tl.sum(tl.where(i < count - 1, size, 0), 0)
            first += BLOCK
    tl.store(plan + COUNT, tl.where((kind != 0) & (fault == 0), count, 0))
    return fault


@Ready
@triton.jit(do_not_specialize=["limit", "stride"])
def read(frames, limit, plans, freq, starts, sizes, faults, stride, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """The plans of a frame: both tables, and the chunks of the symbols. One program.

    Where symbols are joined, EACH of them are one.
    """
    plans, freq = of_frame(plans, stride, 8), of_frame(freq, stride, 4)
    starts, sizes = of_frame(starts, stride, 8), of_frame(sizes, stride, 4)
    data, plain = bytes_at(frames, SOURCE), noted(frames, FIELDS)
    n, end, limit = noted(frames, LENGTH), noted(frames, INNERS), limit.to(tl.int64)
    form = byte(data, tl.zeros([], tl.int64), end)
    joined = (form == JOINED) & (EACH > 1)
    n = tl.where(joined, (n + EACH - 1) // EACH, n)
    limit = tl.where(joined, 256, limit)
    fault = tl.where((form != PLAIN) & (form != CODED) & (joined == 0), BAD_CODE, 0).to(tl.int64)
    fault = tl.where((form == PLAIN) & (end - 1 != plain), TRUNCATED, fault)
    tl.store(plans + FORM, tl.where(fault == 0, form, -1))
    if (form == CODED) | joined:
        one = tl.full([], 1, tl.int64)
        after, escapes, fault = read_head(data, one, end, limit, freq, plans, True)
        tl.debug_barrier()  # what one thread wrote, all will read
        if escapes:
            symbol, tail = byte(data, after, end), get32(data, after + 1, end)
            sizes_at = after + 5 + tail
            known = tl.load(freq + symbol, mask=symbol <= tl.load(plans + LAST), other=0)
            fault = tl.where((symbol >= limit) | (known == 0), BAD_TABLE, fault)
            fault = tl.where(sizes_at > end, TRUNCATED, fault)
            tl.store(plans + ESCAPED, symbol)
            tl.store(plans + SIZES, sizes_at)
            if fault == 0:
                _, _, fault = read_head(data, after + 5, sizes_at, limit, freq + 256, plans + PLAN, False)
        tl.debug_barrier()
        if fault == 0:
            fault = find_chunks(data, plans, n, starts, sizes, BLOCK)
        else:
            tl.store(plans + KIND, tl.zeros([], tl.int64))
    tl.atomic_min(faults + tl.program_id(2), fault.to(tl.int32))


@Ready
@triton.jit(do_not_specialize=["stride"])
def fill_slots(plans, freq, slots, stride, BLOCK: tl.constexpr, SYMBOLS: tl.constexpr):
    """What each of the 2^12 slots of level `program_id(1)` means: symbol | f << 8 | (slot - start) << 20."""
    level = tl.program_id(1)
    plans, freq, slots = of_frame(plans, stride, 8), of_frame(freq, stride, 4), of_frame(slots, stride, 4)
    plan, freq = plans + level * PLAN, freq + level * 256
    if tl.load(plan + KIND) != RANS:
        return
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    symbol = tl.arange(0, SYMBOLS)
    f = tl.load(freq + symbol, mask=symbol <= tl.load(plan + LAST), other=0)
    before = tl.cumsum(f, 0)[None, :] <= slot[:, None]  # the whole symbol lies before the slot
    found = tl.minimum(tl.sum(before.to(tl.int32), 1), SYMBOLS - 1)
    start = tl.sum(tl.where(before, f[None, :], 0), 1)
    entry = found | tl.load(freq + found) << 8 | (slot - start) << 20
    tl.store(slots + level * TOTAL + slot, entry)
