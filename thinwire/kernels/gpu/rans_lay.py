"""From coded chunks to a message: where each goes, and the copies; the rare symbols, picked out in their order."""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels import spec
from thinwire.kernels.gpu.rans_plan import (
    AT,
    CODED,
    COUNT,
    ESCAPE,
    ESCAPED,
    FIELDS,
    FORM,
    HEAD,
    INNER,
    KIND,
    LANES,
    LENGTH,
    LOG,
    ONE,
    PLAIN,
    PLAN,
    RANS,
    SIZES,
    SOURCE,
    STATES,
    SYMBOL,
    TAIL,
    TARGET,
    WIDE,
    N,
    bytes_at,
    noted,
    of_frame,
    symbols_at,
)
from thinwire.kernels.gpu.ready import Ready

TILE = tl.constexpr(spec.TILE)  # symbols whose fields lie together
BAD_SYMBOL = tl.constexpr(-4)  # see thinwire.codecs.native.FAULTS


@triton.jit
def sum_before(values, count, starts, BLOCK: tl.constexpr):
    """Each start is the sum of the values before it; returns the sum of all. One program."""
    total = tl.zeros([], tl.int64)
    first = tl.zeros([], tl.int64)
    while first < count:
        i = first + tl.arange(0, BLOCK)
        v = tl.load(values + i, mask=i < count, other=0).to(tl.int64)
        tl.store(starts + i, total + tl.cumsum(v, 0) - v, mask=i < count)
        total += tl.sum(v, 0)
        first += BLOCK
    return total


@Ready
@triton.jit(do_not_specialize=["stride"])
def start_rares(plans, counts, starts, stride, BLOCK: tl.constexpr):
    """Where the rare symbols of each chunk go among all rare ones."""
    plans, counts, starts = of_frame(plans, stride, 8), of_frame(counts, stride, 4), of_frame(starts, stride, 8)
    if tl.load(plans + ESCAPED) >= 0:
        sum_before(counts, tl.load(plans + COUNT), starts, BLOCK)


@Ready
@triton.jit(do_not_specialize=["stride"])
def pick_rares(frames, plans, table, counts, starts, rares, stride, BLOCK: tl.constexpr):
    """The rare symbols of every chunk, in order."""
    symbols, plans, table = symbols_at(frames, INNER), of_frame(plans, stride, 8), of_frame(table, stride, 8)
    counts, starts, rares = of_frame(counts, stride, 4), of_frame(starts, stride, 8), of_frame(rares, stride, 1)
    c = tl.program_id(0).to(tl.int64)
    count = tl.where(tl.load(plans + ESCAPED) < 0, 0, tl.load(plans + COUNT))
    n, log = tl.load(plans + N), tl.load(plans + LOG)
    while c < count:
        at, first = tl.load(starts + c), c << log
        stop = tl.where(tl.load(counts + c) > 0, tl.minimum(n, (c + 1) << log), 0)
        while first < stop:
            i = first + tl.arange(0, BLOCK)
            s = tl.load(symbols + i, mask=i < stop, other=0)
            entry = tl.load(table + s.to(tl.int32), mask=i < stop, other=0)
            rare = ((entry >> 61) & 1).to(tl.int32)
            found = tl.sum(rare, 0)
            if found > 0:
                tl.store(rares + at + tl.cumsum(rare, 0) - rare, s, mask=rare > 0)
            at += found
            first += BLOCK
        c += tl.num_programs(0)


@triton.jit
def whole(plan, sizes, starts, ahead, BLOCK: tl.constexpr):
    """The bytes of a level's message, with `ahead` bytes between its table and its sizes."""
    used = tl.full([], 2, tl.int64)
    if tl.load(plan + KIND) == RANS:
        count = tl.load(plan + COUNT)
        sizes_at = 2 + tl.load(plan + HEAD) + ahead
        tl.store(plan + SIZES, sizes_at)
        used = sizes_at + 4 * (count - 1) + sum_before(sizes, count, starts, BLOCK)
    return used


@Ready
@triton.jit(do_not_specialize=["chunks", "as_", "stride"])
def lay(frames, plans, sizes, starts, chunks, as_, bad, result, stride, BLOCK: tl.constexpr):
    """Where everything goes, the frame's first byte and how long it is.

    The first byte of a coded frame is `as_`; `bad` says whether a symbol did not fit.
    """
    out, room, bad = bytes_at(frames, TARGET), noted(frames, FIELDS), of_frame(bad, stride, 8)
    plans, sizes, starts = of_frame(plans, stride, 8), of_frame(sizes, stride, 4), of_frame(starts, stride, 8)
    tail = tl.zeros([], tl.int64)
    ahead = tl.zeros([], tl.int64)
    if tl.load(plans + ESCAPED) >= 0:
        tail = whole(plans + PLAN, sizes + chunks, starts + chunks, ahead, BLOCK)
        ahead = tail + 5
    used = whole(plans, sizes, starts, ahead, BLOCK)
    fits = (tl.load(plans + KIND) >= 0) & (tl.load(bad) == 0)
    coded = fits & (used <= room)
    tl.store(plans + TAIL, tail)
    tl.store(plans + AT, tl.full([], 1, tl.int64))
    tl.store(plans + PLAN + AT, 1 + 2 + tl.load(plans + HEAD) + 5)
    form = tl.where(coded, CODED, PLAIN)
    tl.store(plans + FORM, form.to(tl.int64))
    tl.store(plans + PLAN + FORM, tl.where(tail > 0, form, PLAIN).to(tl.int64))
    tl.store(out, tl.where(coded, as_, PLAIN).to(tl.uint8))
    tl.store(result + tl.program_id(2), tl.where(fits, tl.where(coded, 1 + used, 1 + room), BAD_SYMBOL))


@triton.jit
def put_head(out, plan, words):
    """Everything of a level before the sizes of its chunks."""
    if tl.load(plan + KIND) == ONE:
        tl.store(out, tl.full([], ONE, tl.uint8))
        tl.store(out + 1, tl.load(plan + SYMBOL).to(tl.uint8))
        return
    escape, head = tl.load(plan + ESCAPED), tl.load(plan + HEAD)
    kind = RANS + tl.where(tl.load(plan + LANES) == STATES, WIDE, 0) + tl.where(escape >= 0, ESCAPE, 0)
    tl.store(out, kind.to(tl.uint8))
    tl.store(out + 1, tl.load(plan + LOG).to(tl.uint8))
    j = tl.arange(0, 1024)
    word = tl.load(words + j // 4, mask=j < head, other=0)
    tl.store(out + 2 + j, (word >> (24 - 8 * (j % 4))).to(tl.uint8), mask=j < head)
    if escape >= 0:
        tl.store(out + 2 + head, escape.to(tl.uint8))
        put32(out + 3 + head, tl.load(plan + TAIL))


@triton.jit
def put32(out, value):
    """Four bytes at any address."""
    k = tl.arange(0, 4)
    tl.store(out + k, ((value >> (8 * k)) & 255).to(tl.uint8))


@Ready
@triton.jit(do_not_specialize=["stride"])
def place(frames, room, plan, sizes, starts, words, stride, BLOCK: tl.constexpr):
    """The chunks of a level, their sizes, and with the first the head, to their places in the message."""
    c = tl.program_id(0).to(tl.int64)
    out, room, plan = bytes_at(frames, TARGET), of_frame(room, stride, 2), of_frame(plan, stride, 8)
    sizes, starts, words = of_frame(sizes, stride, 4), of_frame(starts, stride, 8), of_frame(words, stride, 4)
    if tl.load(plan + FORM) != CODED:
        return
    out += tl.load(plan + AT)
    if c == 0:
        put_head(out, plan, words)
    count, n, log, sizes_at = tl.load(plan + COUNT), tl.load(plan + N), tl.load(plan + LOG), tl.load(plan + SIZES)
    # In parts of a chunk, so that few chunks keep all programs busy.
    split = tl.minimum(tl.maximum(tl.num_programs(0) // tl.maximum(count, 1), 1), 8)
    part, groups = c % split, tl.num_programs(0) // split
    c = tl.where(c // split < groups, c // split, count)
    while c < count:
        size = tl.load(sizes + c)
        if (part == 0) & (c + 1 < count):
            put32(out + sizes_at + 4 * c, size)
        m = tl.minimum(n - (c << log), tl.full([], 1, tl.int64) << log)
        end = (room + (c << log) + c * (2 * STATES) + m + 2 * STATES).to(tl.pointer_type(tl.uint8))
        to = out + sizes_at + 4 * (count - 1) + tl.load(starts + c)
        first = (part * BLOCK).to(tl.int32)
        while first < size:
            i = first + tl.arange(0, BLOCK)
            tl.store(to + i, tl.load(end - size + i, mask=i < size, other=0), mask=i < size)
            first += (split * BLOCK).to(tl.int32)
        c += groups


@Ready
@triton.jit(do_not_specialize=["stride"])
def pack_plain(frames, plan, stride, WIDTH: tl.constexpr):
    """Fields of WIDTH bits after the frame's first byte (see thinwire.kernels.spec), unless the message is coded."""
    if tl.load(of_frame(plan, stride, 8) + FORM) == CODED:
        return
    symbols, out, n = bytes_at(frames, SOURCE), bytes_at(frames, TARGET), noted(frames, LENGTH)
    first = tl.program_id(0).to(tl.int64) * TILE
    while first < n:
        lanes = tl.minimum((n - first + 7) // 8, TILE // 8)
        row, lane = tl.arange(0, 8)[:, None], tl.arange(0, TILE // 8)[None, :]
        i = first + row * lanes + lane
        fields = tl.load(symbols + i, mask=(lane < lanes) & (i < n), other=0).to(tl.int64)
        number = tl.sum(fields << (WIDTH * row), 0)
        at = out + 1 + first // 8 * WIDTH + tl.arange(0, TILE // 8)
        for j in tl.static_range(WIDTH):
            tl.store(at + j * lanes, ((number >> (8 * j)) & 255).to(tl.uint8), mask=tl.arange(0, TILE // 8) < lanes)
        first += tl.num_programs(0).to(tl.int64) * TILE
