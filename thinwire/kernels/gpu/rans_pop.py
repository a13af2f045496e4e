"""Chunks of words back to symbols: one warp per chunk, a state in each of its threads, four warps to a program.

In a step every thread gives one symbol; those whose states ran low take a word each, in the order of the threads. A
chunk is whole when its words are used up and every state is where an encoder starts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.rans_lay import TILE, sum_before
from thinwire.kernels.gpu.rans_plan import (
    BITS,
    COUNT,
    ESCAPED,
    FORM,
    INNER,
    JOINED,
    KIND,
    LANES,
    LENGTH,
    LOG,
    LOW,
    NARROW,
    ONE,
    PLAIN,
    PLAN,
    RARE,
    SOURCE,
    STATES,
    SYMBOL,
    TARGET,
    TOTAL,
    N,
    ask_for,
    bytes_at,
    keep_near,
    look_up,
    noted,
    of_frame,
    pick,
    ranks,
)
from thinwire.kernels.gpu.rans_read import BAD_CODE, BAD_COUNT, LEFT_OVER, TRUNCATED, find_chunks
from thinwire.kernels.gpu.ready import Ready

TOGETHER = tl.constexpr(4 * 32)  # threads of four chunks, which share a table


@triton.jit
def words_at(data, at, size, mask):
    """Two bytes at any address, 0 past the end."""
    here = mask & (at + 1 < size)
    first = tl.load(data + at, mask=here, other=0).to(tl.uint32)
    return tl.load(data + at + 1, mask=here, other=0).to(tl.uint32) << 8 | first


@triton.jit
def pop(
    x,
    at,
    words,
    data,
    size,
    slots,
    near,
    mask,
    VOTES: tl.constexpr,
    NEAR: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One symbol from each state; the words read so far end at byte `at`.

    With WINDOW, `words` are the next 32, one in each thread, whose own is at `at`. They are asked for before it is
    known who needs which: a shuffle then takes less time than a load.
    """
    entry = look_up(slots, near, (x & (TOTAL - 1)).to(tl.int32), NEAR).to(tl.uint32, bitcast=True)
    y = ((entry >> 8) & 0xFFF) * (x >> BITS) + (entry >> 20)
    low = y < LOW
    if MASKED:
        low = low & mask
    rank, total = ranks(low, VOTES)
    if WINDOW:
        taken = pick(words, rank, VOTES)
        at += 2 * total
        words = words_at(data, at, size, tl.arange(0, TOGETHER) >= 0)
    else:
        taken = words_at(data, at + 2 * rank, size, low)
        at += 2 * total
    y = tl.where(low, y << 16 | taken, y)
    if MASKED:
        y = tl.where(mask, y, x)
    return y, at, words, (entry & 255).to(tl.uint8)


@triton.jit
def pop_all(
    data,
    size,
    slots,
    near,
    out,
    m,
    escape,
    WIDTH: tl.constexpr,
    VOTES: tl.constexpr,
    NEAR: tl.constexpr,
    WINDOW: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """`m` symbols in each warp, none where it has no chunk; returns faults and how often a thread gave `escape`."""
    lane = tl.arange(0, TOGETHER) % 32
    mask = lane < WIDTH
    live = mask & (m > 0)
    x = tl.zeros([TOGETHER], tl.uint32)
    for k in tl.static_range(4):
        x |= tl.load(data + 4 * lane + k, mask=mask & (4 * lane + k < size), other=0).to(tl.uint32) << (8 * k)
    begun = (x >= LOW) & (x < (LOW << 16))
    own = 2 * lane if WINDOW else 0 * lane
    at = 4 * WIDTH + own
    escapes = tl.zeros([TOGETHER], tl.int32)
    MASKED: tl.constexpr = WIDTH < STATES
    words = words_at(data, at, size, lane >= 0)
    done = tl.zeros([], tl.int32)
    most = tl.max(m, 0)
    least = tl.min(tl.where(m > 0, m, most), 0)
    while done + 4 * WIDTH <= least:
        if AHEAD > 0:  # four steps read at most 256 bytes
            ask_for(data + tl.maximum(tl.minimum(at + AHEAD + 6 * lane, size - 1), 0), VOTES)
        for _ in tl.static_range(4):
            x, at, words, s = pop(x, at, words, data, size, slots, near, mask, VOTES, NEAR, MASKED, WINDOW)
            tl.store(out + done + lane, s, mask=live)
            escapes += (s.to(tl.int32) == escape).to(tl.int32)
            done += WIDTH
    while done < most:
        some = mask & (done + lane < m)
        x, at, words, s = pop(x, at, words, data, size, slots, near, some, VOTES, NEAR, True, WINDOW)
        tl.store(out + done + lane, s, mask=some)
        escapes += (some & (s.to(tl.int32) == escape)).to(tl.int32)
        done += WIDTH
    at -= own
    wrong = (x != LOW) | (begun == 0)
    # The order in which they matter: what is cut short is rarely right otherwise.
    fault = tl.where(at > size, TRUNCATED, tl.where(wrong, BAD_CODE, tl.where(at < size, LEFT_OVER, 0)))
    return tl.where(live, fault, 0), tl.where(live, escapes, 0)


@triton.jit
def fill(plan, out):
    """A level of one symbol."""
    symbol = tl.load(plan + SYMBOL).to(tl.uint8)
    n = tl.load(plan + N)
    first = tl.program_id(0).to(tl.int64) * 2048
    while first < n:
        i = first + tl.arange(0, 2048)
        tl.store(out + i, tl.zeros([2048], tl.uint8) + symbol, mask=i < n)
        first += tl.num_programs(0).to(tl.int64) * 2048


@triton.jit
def popped(frames, plan):
    """Where the symbols of level 0 go: those of a frame that says that they are joined, where these are."""
    joined = tl.load(plan + FORM) == JOINED
    return tl.where(joined, noted(frames, INNER), noted(frames, TARGET)).to(tl.pointer_type(tl.uint8))


@Ready
@triton.jit(do_not_specialize=["stride"])
def pop_chunks(
    frames,
    plan,
    starts,
    sizes,
    slots,
    rares,
    counts,
    faults,
    stride,
    LEVEL: tl.constexpr,
    VOTES: tl.constexpr,
    NEAR: tl.constexpr,
    WINDOW: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """The chunks of a level, four at a time; their escapes are counted. A program has four warps."""
    group = tl.program_id(0).to(tl.int64)
    data, plan, slots = bytes_at(frames, SOURCE), of_frame(plan, stride, 8), of_frame(slots, stride, 4)
    starts, sizes, counts = of_frame(starts, stride, 8), of_frame(sizes, stride, 4), of_frame(counts, stride, 4)
    out = of_frame(rares, stride, 1) if LEVEL else popped(frames, plan)
    count = tl.load(plan + COUNT)
    if (tl.load(plan + KIND) == ONE) & (count > 0):
        fill(plan, out)
        return
    if 4 * group >= count:
        return
    n, log, lanes = tl.load(plan + N), tl.load(plan + LOG), tl.load(plan + LANES)
    escape = tl.load(plan + ESCAPED).to(tl.int32)
    near = keep_near(slots, TOTAL, tl.arange(0, TOGETHER), NEAR)
    while 4 * group < count:
        c = 4 * group + tl.arange(0, TOGETHER) // 32
        here = c < count
        first = c << log
        m = tl.where(here, tl.minimum(n - first, tl.full([], 1, tl.int64) << log), 0).to(tl.int32)
        from_, to = data + tl.load(starts + c, mask=here, other=0), out + first
        size = tl.load(sizes + c, mask=here, other=0)
        if lanes == STATES:
            fault, escapes = pop_all(from_, size, slots, near, to, m, escape, STATES, VOTES, NEAR, WINDOW, AHEAD)
        else:
            fault, escapes = pop_all(from_, size, slots, near, to, m, escape, NARROW, VOTES, NEAR, False, 0)
        each = 4 * group + tl.arange(0, 4)
        tl.store(counts + each, tl.sum(tl.reshape(escapes, [4, 32]), 1), mask=each < count)
        worst = tl.min(fault, 0)
        if worst != 0:
            tl.atomic_min(faults + tl.program_id(2), worst)
        group += tl.num_programs(0)


@Ready
@triton.jit(do_not_specialize=["stride"])
def find_rares(frames, plans, counts, places, starts, sizes, faults, stride, BLOCK: tl.constexpr):
    """How many symbols are rare, where those of each chunk go, and the chunks of their own message. One program."""
    data, plans, faults = bytes_at(frames, SOURCE), of_frame(plans, stride, 8), faults + tl.program_id(2)
    counts, places = of_frame(counts, stride, 4), of_frame(places, stride, 8)
    starts, sizes = of_frame(starts, stride, 8), of_frame(sizes, stride, 4)
    count = tl.load(plans + COUNT)
    if (tl.load(plans + ESCAPED) < 0) | (count == 0):
        tl.store(plans + PLAN + COUNT, tl.zeros([], tl.int64))
        return
    rares = sum_before(counts, count, places, BLOCK)
    if (rares == 0) | (rares > tl.load(plans + N) // RARE + 1):
        tl.store(plans + PLAN + COUNT, tl.zeros([], tl.int64))
        tl.atomic_min(faults, BAD_COUNT)
        return
    fault = find_chunks(data, plans + PLAN, rares, starts, sizes, BLOCK)
    tl.atomic_min(faults, fault.to(tl.int32))


@Ready
@triton.jit(do_not_specialize=["stride"])
def put_rares(frames, plans, counts, places, rares, stride, BLOCK: tl.constexpr):
    """The rare symbols of every chunk in place of its escapes."""
    plans, counts = of_frame(plans, stride, 8), of_frame(counts, stride, 4)
    places, rares, out = of_frame(places, stride, 8), of_frame(rares, stride, 1), popped(frames, plans)
    c = tl.program_id(0).to(tl.int64)
    count = tl.where(tl.load(plans + PLAN + COUNT) == 0, 0, tl.load(plans + COUNT))
    log, escape, n = tl.load(plans + LOG), tl.load(plans + ESCAPED), tl.load(plans + N)
    while c < count:
        at, first = tl.load(places + c), c << log
        stop = tl.where(tl.load(counts + c) > 0, tl.minimum(n, (c + 1) << log), 0)
        while first < stop:
            i = first + tl.arange(0, BLOCK)
            s = tl.load(out + i, mask=i < stop, other=0).to(tl.int32)
            rare = ((s == escape) & (i < stop)).to(tl.int32)
            found = tl.sum(rare, 0)
            if found > 0:
                from_ = rares + at + tl.cumsum(rare, 0) - rare
                tl.store(out + i, tl.load(from_, mask=rare > 0, other=0), mask=rare > 0)
            at += found
            first += BLOCK
        c += tl.num_programs(0)


@Ready
@triton.jit(do_not_specialize=["stride"])
def unpack_plain(frames, plan, stride, WIDTH: tl.constexpr):
    """Fields of WIDTH bits after the frame's first byte, where the frame says that they are plain."""
    if tl.load(of_frame(plan, stride, 8) + FORM) != PLAIN:
        return
    data, out, n = bytes_at(frames, SOURCE), bytes_at(frames, TARGET), noted(frames, LENGTH)
    first = tl.program_id(0).to(tl.int64) * TILE
    while first < n:
        lanes = tl.minimum((n - first + 7) // 8, TILE // 8)
        row, lane = tl.arange(0, 8)[:, None], tl.arange(0, TILE // 8)
        number = tl.zeros([TILE // 8], tl.int64)
        for j in tl.static_range(WIDTH):
            at = data + 1 + first // 8 * WIDTH + j * lanes + lane
            number |= tl.load(at, mask=lane < lanes, other=0).to(tl.int64) << (8 * j)
        fields = (number[None, :] >> (WIDTH * row)) & ((1 << WIDTH) - 1)
        i = first + row * lanes + lane[None, :]
        tl.store(out + i, fields.to(tl.uint8), mask=(lane[None, :] < lanes) & (i < n))
        first += tl.num_programs(0).to(tl.int64) * TILE
