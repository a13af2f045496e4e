"""Chunks of symbols to chunks of words: one warp per chunk, a state in each of its threads.

Words are written downwards from the end of a room of one word per symbol and two per state. In a step every thread
takes one symbol; those whose states are full write a word each, side by side in the order of the threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.rans_plan import (
    COUNT,
    INNER,
    LANES,
    LOG,
    LOW,
    NARROW,
    STATES,
    N,
    ask_for,
    of_frame,
    ranks,
    symbols_at,
)
from thinwire.kernels.gpu.ready import Ready


@triton.jit
def push(x, at, rares, entry, mask, end, VOTES: tl.constexpr, MASKED: tl.constexpr):
    """One symbol into each state; `at` words were written before."""
    packed = (entry >> 32).to(tl.uint32)
    rest = packed & 0xFFF
    full = (x + (rest << 19)).to(tl.int32, bitcast=True) < 0  # x >= 2^19 f
    if MASKED:
        full = full & mask
    rank, total = ranks(full, VOTES)
    at += total
    tl.store(end + (rank - at), x.to(tl.uint16), mask=full)
    y = tl.where(full, x >> 16, x)
    q = tl.umulhi(y, entry.to(tl.uint32)) >> ((packed >> 25) & 15)
    y += q * rest + ((packed >> 12) & 0x1FFF)
    rare = (packed >> 29).to(tl.int32)
    if MASKED:
        y = tl.where(mask, y, x)
        rare = tl.where(mask, rare, 0)
    return y, at, rares + rare


@triton.jit
def four_at(symbols, some, WIDTH: tl.constexpr):
    """The symbols of four steps."""
    a = tl.load(symbols, mask=some, other=0).to(tl.int32)
    b = tl.load(symbols + WIDTH, mask=some, other=0).to(tl.int32)
    c = tl.load(symbols + 2 * WIDTH, mask=some, other=0).to(tl.int32)
    return a, b, c, tl.load(symbols + 3 * WIDTH, mask=some, other=0).to(tl.int32)


@triton.jit
def four_of(table, a, b, c, d):
    """Their entries."""
    return tl.load(table + a), tl.load(table + b), tl.load(table + c), tl.load(table + d)


@triton.jit
def push_all(symbols, m, table, end, WIDTH: tl.constexpr, VOTES: tl.constexpr, AHEAD: tl.constexpr):
    """`m` symbols downwards: the last few one step at a time, the others eight steps at a time.

    What eight steps look up does not depend on the states, so it is asked for while the eight before are computed;
    their symbols, which come from further away, eight steps earlier still, and those' memory AHEAD bytes before.
    Returns the states, the words written and how many symbols were rare.
    """
    lane = tl.arange(0, STATES)
    x = tl.full([STATES], LOW, tl.uint32)
    at = tl.zeros([STATES], tl.int32)
    rares = tl.zeros([STATES], tl.int32)
    eights = m // (8 * WIDTH)
    groups = (m + WIDTH - 1) // WIDTH
    while groups > 8 * eights:
        groups -= 1
        i = groups * WIDTH + lane
        mask = (lane < WIDTH) & (i < m)
        entry = tl.load(table + tl.load(symbols + i, mask=mask, other=0).to(tl.int32))
        x, at, rares = push(x, at, rares, entry, mask, end, VOTES, True)
    MASKED: tl.constexpr = WIDTH < STATES
    mask = lane < WIDTH
    here = symbols + (eights - 1) * (8 * WIDTH) + lane
    some = lane < tl.minimum(eights, 1) * WIDTH
    s0, s1, s2, s3 = four_at(here, some, WIDTH)
    s4, s5, s6, s7 = four_at(here + 4 * WIDTH, some, WIDTH)
    e0, e1, e2, e3 = four_of(table, s0, s1, s2, s3)
    e4, e5, e6, e7 = four_of(table, s4, s5, s6, s7)
    here -= 8 * WIDTH
    some = lane < tl.minimum(eights - 1, 1) * WIDTH
    s0, s1, s2, s3 = four_at(here, some, WIDTH)
    s4, s5, s6, s7 = four_at(here + 4 * WIDTH, some, WIDTH)
    while eights > 0:
        here -= 8 * WIDTH
        some = lane < tl.minimum(eights - 2, 1) * WIDTH
        t0, t1, t2, t3 = four_at(here, some, WIDTH)
        t4, t5, t6, t7 = four_at(here + 4 * WIDTH, some, WIDTH)
        if AHEAD > 0:  # eight steps have two lines of memory
            ask_for(symbols + tl.maximum(eights * (8 * WIDTH) - AHEAD, 0) + 128 * (lane % 2), VOTES)
        n0, n1, n2, n3 = four_of(table, s0, s1, s2, s3)
        n4, n5, n6, n7 = four_of(table, s4, s5, s6, s7)
        x, at, rares = push(x, at, rares, e7, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e6, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e5, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e4, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e3, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e2, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e1, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e0, mask, end, VOTES, MASKED)
        e0, e1, e2, e3, e4, e5, e6, e7 = n0, n1, n2, n3, n4, n5, n6, n7
        s0, s1, s2, s3, s4, s5, s6, s7 = t0, t1, t2, t3, t4, t5, t6, t7
        eights -= 1
    return x, at, rares


@Ready
@triton.jit(do_not_specialize=["stride"])
def push_chunks(
    frames, rare_symbols, plan, table, room, sizes, rare_counts, stride, LEVEL: tl.constexpr, VOTES: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Chunks of level 0, the symbols, or 1, the rare ones, into their rooms; bytes and rare symbols are counted."""
    symbols = of_frame(rare_symbols, stride, 1) if LEVEL else symbols_at(frames, INNER)
    plan, table, room = of_frame(plan, stride, 8), of_frame(table, stride, 8), of_frame(room, stride, 2)
    sizes, rare_counts = of_frame(sizes, stride, 4), of_frame(rare_counts, stride, 4)
    c = tl.program_id(0).to(tl.int64)
    count, n, log, lanes = tl.load(plan + COUNT), tl.load(plan + N), tl.load(plan + LOG), tl.load(plan + LANES)
    while c < count:
        first = c << log
        m = tl.minimum(n - first, tl.full([], 1, tl.int64) << log).to(tl.int32)
        end = room + first + c * (2 * STATES) + m + 2 * STATES
        if lanes == STATES:
            x, at, rares = push_all(symbols + first, m, table, end, STATES, VOTES, AHEAD)
        else:
            x, at, rares = push_all(symbols + first, m, table, end, NARROW, VOTES, 0)
        lane = tl.arange(0, STATES)
        to = end - at - 2 * lanes + 2 * lane
        tl.store(to, x.to(tl.uint16), mask=lane < lanes)
        tl.store(to + 1, (x >> 16).to(tl.uint16), mask=lane < lanes)
        words = tl.max(at, 0) + 2 * lanes
        tl.store(sizes + c, (2 * words).to(tl.int32))
        tl.store(rare_counts + c, tl.sum(rares, 0))
        c += tl.num_programs(0)
