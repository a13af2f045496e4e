"""The model of a rANS message on the device: counts, frequencies, the encoder's table and the table's bytes.

The whole numbers of `fit`, `estimate` and `rans_encode` in thinwire/kernels/cpu, over a vector of symbols.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.rans_plan import (
    BITS,
    COUNT,
    ENOUGH,
    ESCAPED,
    FEW,
    HEAD,
    INNER,
    INNERS,
    KIND,
    LANES,
    LARGEST_CHUNK,
    LOG,
    NARROW,
    ONE,
    PLAN,
    RANS,
    SMALLEST_CHUNK,
    STATES,
    SYMBOL,
    TOTAL,
    N,
    noted,
    of_frame,
    symbols_at,
)
from thinwire.kernels.gpu.ready import Ready

WORDS = tl.constexpr(256)  # of 32 bits: at most 25 bits for each symbol
BEYOND = tl.constexpr(256)  # counted where there is no symbol
ROUND = tl.constexpr(1024)  # symbols that a program of `count_few` reads at a time, eight in a row per thread
FLUSHED = tl.constexpr(28 * 1024)  # symbols of a program: a count of 8 bits holds 31 * 8


@triton.jit
def zeroed_near():
    """Counts in shared memory, 272 for each of four warps, which then wait less; returns where."""
    near = tl.inline_asm_elementwise(
        "{ .shared .align 16 .b8 thinwire_counts[4608]; mov.u32 $0, thinwire_counts; }",
        "=r,r",
        [tl.program_id(0)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    for i in tl.static_range(9):
        tl.inline_asm_elementwise(
            "st.shared.b32 [$1], 0; mov.b32 $0, 0;",
            "=r,r",
            [near + 4 * (128 * i + tl.arange(0, 128))],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    tl.debug_barrier()
    return near


@triton.jit
def count_near(near, symbols):
    """Count numbers up to 271. Threads must not hold copies of each other's, or these would count again."""
    tl.inline_asm_elementwise(
        """{
            .reg .b32 warp, at;
            mov.u32 warp, %tid.x;
            shr.u32 warp, warp, 5;
            mad.lo.u32 at, warp, 1088, $1;
            mad.lo.u32 at, $2, 4, at;
            red.shared.add.u32 [at], 1;
            mov.b32 $0, 0;
        }""",
        "=r,r,r",
        [near, symbols],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def counts_near(near, symbol):
    """The sums of the four warps' counts."""
    tl.debug_barrier()
    total = tl.zeros_like(symbol)
    for warp in tl.static_range(4):
        total += tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];",
            "=r,r",
            [near + 1088 * warp + 4 * symbol],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    return total


@Ready
@triton.jit(do_not_specialize=["limit", "stride"])
def count_symbols(frames, counts, limit, stride, BINS: tl.constexpr, BLOCK: tl.constexpr, NEAR: tl.constexpr):
    """Add the histogram of the symbols below `limit` to `counts`."""
    symbols, n, counts = symbols_at(frames, INNER), noted(frames, INNERS), of_frame(counts, stride, 8)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if NEAR:
        near = zeroed_near()
        while start + BLOCK <= n:  # without a mask, sixteen bytes are one load
            count_near(near, tl.load(symbols + start + at).to(tl.int32))
            start += step
        if start < n:  # what is past the end counts as what is past the limit
            s = tl.load(symbols + start + at, mask=start + at < n, other=0).to(tl.int32)
            count_near(near, tl.where(start + at < n, s, BEYOND))
        total = counts_near(near, tl.arange(0, BINS))
    else:
        total = tl.zeros([BINS], tl.int32)
        while start < n:  # the interpreter's `range` takes no tensors with numpy 2.4
            s = tl.load(symbols + start + at, mask=start + at < n, other=255).to(tl.int32)
            total += tl.histogram(s, BINS, mask=(start + at < n) & (s < limit))
            start += step
    symbol = tl.arange(0, BINS)
    tl.atomic_add(counts + symbol, total.to(tl.int64), mask=(total > 0) & (symbol < limit))


@triton.jit
def eights(symbols, limit):
    """How often each of 16 symbols is among eight neighbours, in fields of 4 bits."""
    s = symbols.to(tl.int32)
    ones = tl.where(s < limit, tl.full([ROUND], 1, tl.int64) << (4 * (s & 15)).to(tl.int64), 0)
    return tl.sum(tl.reshape(ones, [ROUND // 8, 8]), 1)


@triton.jit
def add_eights(even, odd, symbols, limit):
    """The counts of eight neighbours to those in fields of 8 bits."""
    eight = eights(symbols, limit)
    return even + (eight & 0x0F0F0F0F0F0F0F0F), odd + ((eight >> 4) & 0x0F0F0F0F0F0F0F0F)


@Ready
@triton.jit(do_not_specialize=["limit", "stride"])
def count_few(frames, counts, limit, stride):
    """The same for symbols 0 to 15, of which a thread counts eight in the 4-bit fields of one number."""
    symbols, n, counts = symbols_at(frames, INNER), noted(frames, INNERS), of_frame(counts, stride, 8)
    first = tl.program_id(0).to(tl.int64) * FLUSHED
    even = tl.zeros([ROUND // 8], tl.int64)  # symbols 0, 2, 4, ... in fields of 8 bits
    odd = tl.zeros([ROUND // 8], tl.int64)
    stop = tl.minimum(first + FLUSHED, n)
    i = tl.arange(0, ROUND)
    while first + 4 * ROUND <= stop:  # without a mask, eight bytes are one load; four are under way at a time
        a, b = tl.load(symbols + first + i), tl.load(symbols + first + ROUND + i)
        c, d = tl.load(symbols + first + 2 * ROUND + i), tl.load(symbols + first + 3 * ROUND + i)
        even, odd = add_eights(even, odd, a, limit)
        even, odd = add_eights(even, odd, b, limit)
        even, odd = add_eights(even, odd, c, limit)
        even, odd = add_eights(even, odd, d, limit)
        first += 4 * ROUND
    while first < stop:
        even, odd = add_eights(even, odd, tl.load(symbols + first + i, mask=first + i < stop, other=255), limit)
        first += ROUND
    # Fields of 16 bits hold the sum of 128 threads: at most 28 * 1024.
    field = tl.arange(0, 4)
    for k in tl.static_range(4):
        half = even if k % 2 == 0 else odd
        total = tl.sum((half >> (8 * (k // 2))) & 0x00FF00FF00FF00FF, 0)
        tl.atomic_add(counts + 4 * field + k, (total >> (16 * field)) & 0xFFFF)


@triton.jit
def log2_floor(k):
    """The floor of log2(k) for 1 <= k < 2^14."""
    r = tl.zeros_like(k)
    for j in tl.static_range(1, 14):
        r += (k >= (1 << j)).to(k.dtype)
    return r


@triton.jit
def log2_256(f):
    """log2(f) in 1/256, rounded down, of 1 <= f < 2^14: by squaring."""
    k = log2_floor(f)
    v = f.to(tl.uint64) << (31 - k).to(tl.uint64)
    r = k.to(tl.int64)
    for _ in tl.static_range(8):
        v = (v * v) >> 31
        carry = v >> 32
        r = (r << 1) | carry.to(tl.int64)
        v = v >> carry
    return r


@triton.jit
def bits_of(count, f):
    """Bits for `count` symbols of frequency f."""
    return (count * (BITS * 256 - log2_256(f))) >> 8


@triton.jit
def share(part, n, total):
    """`part` of `n` in units of `total`, between 1 and 2^12 - 1."""
    return tl.minimum(tl.maximum((part * total + n // 2) // tl.maximum(n, 1), 1), TOTAL - 1)


@triton.jit
def is_rare(count, n):
    """Whether a share is above 0 and below 2^-13."""
    return (count > 0) & (count * (2 * TOTAL) < n)


@triton.jit
def worth_escaping(count, n):
    """Whether a frequency of 1 for each rare symbol would cost the others half a percent."""
    rares = tl.sum(is_rare(count, n).to(tl.int64), 0)
    bits = tl.sum(bits_of(count, share(count, n, TOTAL)), 0)
    return (rares > 1) & ((rares - 1) * n > 14 * bits)


@triton.jit
def fit(count, n, symbol):
    """Frequencies of at least 1 that sum to 2^12."""
    rare = is_rare(count, n)
    common = n - tl.sum(tl.where(rare, count, 0), 0)
    rest = -tl.sum(rare.to(tl.int64), 0) + TOTAL
    f = tl.where(rare, 1, tl.where(count > 0, share(count, common, rest), 0))
    over = tl.where(n > 0, tl.sum(f, 0) - TOTAL, 0)
    while over != 0:
        # Where it costs least: count / (2f +- 1) smallest, or largest. Two such fractions that differ do so by more
        # than 2^-26, so 26 bits behind the point order them exactly.
        d = tl.where(over > 0, -1, 1).to(tl.int64)
        key = (count << 26) // tl.maximum(2 * f + d, 1) * -d
        able = (f > 0) & ((d > 0) | (f > 1))
        best = tl.argmin(tl.where(able, key, 1 << 62), 0, tie_break_left=True)
        f = tl.where(symbol == best, f + d, f)
        over += d
    return f


@triton.jit
def write_table(f, last, symbol, words):
    """Gamma codes of `last` and of the frequencies into zeroed words, the first bit highest; returns the bytes."""
    near = tl.gather(f, tl.maximum(tl.where(symbol % 2 == 1, symbol - 2, symbol - 1), 0), 0)
    change = f - tl.where(symbol < 2, 0, near)
    k = tl.where(symbol == 0, last + 1, tl.where(change < 0, -2 * change, 2 * change + 1))
    k = tl.where(symbol <= last, k, 1).to(tl.int64)
    bits = tl.where(symbol <= last, 2 * log2_floor(k) + 1, 0)
    at = tl.cumsum(bits, 0) - bits
    code = k << tl.where(bits > 0, 64 - bits - at % 32, 0)
    high, low = ((code >> 32) & 0xFFFFFFFF).to(tl.int32), (code & 0xFFFFFFFF).to(tl.int32)
    tl.atomic_add(words + at // 32, high, mask=symbol <= last)
    tl.atomic_add(words + at // 32 + 1, low, mask=(symbol <= last) & (low != 0))
    return (tl.sum(bits, 0) + 7) // 8


@Ready
@triton.jit(do_not_specialize=["chunk", "stride"])
def model(frames, counts, chunk, plans, tables, words, stride, BINS: tl.constexpr):
    """Plan, table and head of a level: program 0 for the symbols, 1 for the rare ones.

    An entry of the table is magic | rest << 32 | bias << 44 | shift << 57 | rare << 61, with rest = 2^12 - f, such
    that x div f = (x * magic >> 32) >> shift and the next state is x + (x div f) rest + bias. For f = 1 the magic
    number gives x - 1, which the bias makes good.
    """
    level = tl.program_id(0)
    counts, plans, tables, words = (
        of_frame(counts, stride, 8),
        of_frame(plans, stride, 8),
        of_frame(tables, stride, 8),
        of_frame(words, stride, 4),
    )
    n, chunk = noted(frames, INNERS), chunk.to(tl.int32)
    symbol = tl.arange(0, BINS)
    own = tl.load(counts + symbol)
    fits = tl.sum(own, 0) == n  # every symbol was below the limit
    escapes = worth_escaping(own, n)
    rare = is_rare(own, n) & escapes
    escape = tl.min(tl.where(rare, symbol, BINS), 0)
    rares = tl.sum(tl.where(rare, own, 0), 0)
    if level == 0:
        count = tl.where(rare, tl.where(symbol == escape, rares, 0), own)
    else:
        chunk = tl.where((chunk > 0) | (n > FEW), SMALLEST_CHUNK, 0).to(tl.int32)
        n = rares
        own = tl.where(rare, own, 0)
        count = own
        rare = symbol < 0
        escapes = n < 0
    f = fit(count, tl.where(fits, n, 0), symbol)
    last = tl.max(tl.where(f > 0, symbol, 0), 0)

    start = tl.cumsum(f, 0) - f
    g = tl.maximum(f, 1)
    k = log2_floor(g)
    shift = tl.where((g & (g - 1)) == 0, 31 + k, 32 + k)
    magic = tl.where(g == 1, 0xFFFFFFFF, ((tl.full([BINS], 1, tl.int64) << shift) + g - 1) // g)
    bias = tl.where(g == 1, start + TOTAL - 1, start)
    entry = magic | (-g + TOTAL) << 32 | bias << 44 | tl.maximum(shift - 32, 0) << 57
    of_escape = tl.sum(tl.where(symbol == escape, entry, 0), 0) | (1 << 61)
    tl.store(tables + level * 256 + symbol, tl.where(rare, of_escape, entry))

    shared = tl.sum(tl.where(symbol == escape, f, 0), 0)
    paid = tl.maximum(tl.where(rare, shared, f), 1)
    bytes_ = tl.sum(bits_of(own, paid), 0) // 8
    log = tl.where(chunk > 0, chunk, SMALLEST_CHUNK).to(tl.int64)
    for _ in tl.static_range(LARGEST_CHUNK - SMALLEST_CHUNK):
        more = ((tl.full([], 1, tl.int64) << log) < n) & ((bytes_ << log) // tl.maximum(n, 1) < ENOUGH)
        log += (more & (chunk == 0)).to(tl.int64)
    chunks = ((n - 1) >> log) + 1
    lanes = tl.where((chunk > 0) | (n > FEW) | (bytes_ // tl.maximum(chunks, 1) >= ENOUGH), STATES, NARROW)

    only = tl.max(own, 0) == n
    head = write_table(f, last, symbol, words + level * WORDS)
    kind = tl.where(n == 0, 0, tl.where(only, ONE, RANS))
    plan = plans + level * PLAN
    tl.store(plan + N, n)
    tl.store(plan + KIND, tl.where(fits, kind, -1).to(tl.int64))
    tl.store(plan + LOG, log)
    tl.store(plan + LANES, lanes.to(tl.int64))
    tl.store(plan + COUNT, tl.where((kind == RANS) & fits, chunks, 0))
    tl.store(plan + HEAD, head.to(tl.int64))
    tl.store(plan + ESCAPED, tl.where(escapes, escape, -1).to(tl.int64))
    tl.store(plan + SYMBOL, tl.argmax(own, 0).to(tl.int64))
