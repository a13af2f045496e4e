"""Chunks of symbols to chunks of words: one warp per chunk, a state in each of its threads.

Words are written downwards from the end of a room of one word per symbol and two per state. In a step every thread
takes one symbol; those whose states are full write a word each, side by side in the order of the threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.rans_plan import COUNT, LANES, LOG, LOW, NARROW, STATES, N, ask_for, ranks


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
def push_all(symbols, m, table, end, WIDTH: tl.constexpr, VOTES: tl.constexpr, AHEAD: tl.constexpr):
    """`m` symbols downwards: the last few one step at a time, the others four steps at a time.

    What four steps look up does not depend on the states, so it is asked for while the four before are computed, and
    the memory of their symbols AHEAD bytes before.
    Returns the states, the words written and how many symbols were rare.
    """
    lane = tl.arange(0, STATES)
    x = tl.full([STATES], LOW, tl.uint32)
    at = tl.zeros([STATES], tl.int32)
    rares = tl.zeros([STATES], tl.int32)
    fours = m // (4 * WIDTH)
    groups = (m + WIDTH - 1) // WIDTH
    while groups > 4 * fours:
        groups -= 1
        i = groups * WIDTH + lane
        mask = (lane < WIDTH) & (i < m)
        entry = tl.load(table + tl.load(symbols + i, mask=mask, other=0).to(tl.int32))
        x, at, rares = push(x, at, rares, entry, mask, end, VOTES, True)
    MASKED: tl.constexpr = WIDTH < STATES
    mask = lane < WIDTH
    here = symbols + (fours - 1) * 4 * WIDTH + lane
    some = lane < tl.minimum(fours, 1) * WIDTH
    s0 = tl.load(here, mask=some, other=0).to(tl.int32)
    s1 = tl.load(here + WIDTH, mask=some, other=0).to(tl.int32)
    s2 = tl.load(here + 2 * WIDTH, mask=some, other=0).to(tl.int32)
    s3 = tl.load(here + 3 * WIDTH, mask=some, other=0).to(tl.int32)
    e0, e1, e2, e3 = tl.load(table + s0), tl.load(table + s1), tl.load(table + s2), tl.load(table + s3)
    here -= 4 * WIDTH
    some = lane < tl.minimum(fours - 1, 1) * WIDTH
    s0 = tl.load(here, mask=some, other=0).to(tl.int32)
    s1 = tl.load(here + WIDTH, mask=some, other=0).to(tl.int32)
    s2 = tl.load(here + 2 * WIDTH, mask=some, other=0).to(tl.int32)
    s3 = tl.load(here + 3 * WIDTH, mask=some, other=0).to(tl.int32)
    while fours > 0:
        here -= 4 * WIDTH
        some = lane < tl.minimum(fours - 2, 1) * WIDTH
        t0 = tl.load(here, mask=some, other=0).to(tl.int32)  # two rounds ahead
        t1 = tl.load(here + WIDTH, mask=some, other=0).to(tl.int32)
        t2 = tl.load(here + 2 * WIDTH, mask=some, other=0).to(tl.int32)
        t3 = tl.load(here + 3 * WIDTH, mask=some, other=0).to(tl.int32)
        if AHEAD > 0:
            ask_for(symbols + tl.maximum(fours * (4 * WIDTH) - AHEAD, 0) + tl.zeros_like(lane), VOTES)
        n0, n1, n2, n3 = tl.load(table + s0), tl.load(table + s1), tl.load(table + s2), tl.load(table + s3)
        x, at, rares = push(x, at, rares, e3, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e2, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e1, mask, end, VOTES, MASKED)
        x, at, rares = push(x, at, rares, e0, mask, end, VOTES, MASKED)
        e0, e1, e2, e3 = n0, n1, n2, n3
        s0, s1, s2, s3 = t0, t1, t2, t3
        fours -= 1
    return x, at, rares


@triton.jit
def push_chunks(symbols, plan, table, room, sizes, rare_counts, VOTES: tl.constexpr, AHEAD: tl.constexpr):
    """Chunk `program_id` into its room; its bytes and its rare symbols are counted."""
    c = tl.program_id(0).to(tl.int64)
    if c >= tl.load(plan + COUNT):
        return
    n, log, lanes = tl.load(plan + N), tl.load(plan + LOG), tl.load(plan + LANES)
    first = c << log
    m = tl.minimum(n - first, tl.full([], 1, tl.int64) << log).to(tl.int32)
    end = room + first + c * (2 * STATES) + m + 2 * STATES
    if lanes == STATES:
        x, at, rares = push_all(symbols + first, m, table, end, STATES, VOTES, AHEAD)
    else:
        x, at, rares = push_all(symbols + first, m, table, end, NARROW, VOTES, 0)
    lane = tl.arange(0, STATES)
    place = end - at - 2 * lanes + 2 * lane
    tl.store(place, x.to(tl.uint16), mask=lane < lanes)
    tl.store(place + 1, (x >> 16).to(tl.uint16), mask=lane < lanes)
    words = tl.max(at, 0) + 2 * lanes
    tl.store(sizes + c, (2 * words).to(tl.int32))
    tl.store(rare_counts + c, tl.sum(rares, 0))
