"""The k-th largest magnitude of a vector, found on the device: few kernels, one read of a long vector, and no wait.

In a long vector, a sample says what magnitude a few more than k elements reach (`_sample`). One read marks those
elements (`_mark`), which then move into an array of their own, in order within each region (`_gather`). All that
follows looks at that array alone. Where it holds fewer than k, or more than there is room for, because the sample
misled or because of ties, the same kernels look at the vector instead, which they find out on the device.

`_settle` finds 8 of a magnitude's 31 bits from the top: it counts the elements that share the bits found so far in
256 bins, and the program that ends last reads the bins.

`state` holds: 0 the magnitude from which elements are kept, 1 how many are kept, 2 the bits found so far, which in
the end are the magnitude looked for, 3 how many elements lie above it, 4 and on how many programs of a kernel ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

TILE = 4096
LONG = 1 << 22  # elements of a vector that is worth a sample
LONGEST = (1 << 31) - (1 << 16)  # beyond, the places of a program's tiles would overflow
SAMPLE = 1 << 18
MARKED = 8192  # elements of a program that marks
WORDS = 1024  # of 32 marks: a region
PROGRAMS = 528  # of a kernel that counts: 4 for each of a large device's processors
BINS = 256
EDGES = tl.constexpr(1 << 15)  # bins of the sample: the exponent and 7 bits
STEPS = ((23, 8), (15, 8), (7, 8), (0, 7))  # the lowest bit and the width of what each `_settle` finds
STATE = 16


@dataclass(frozen=True)
class Found:
    """The magnitude looked for, and the elements kept, as the kernels that write them need it.

    An element kept is one integer: its place in its region above its bits. `spots` is where the elements of each
    region begin, and how many they are.
    """

    state: Tensor
    kept: Tensor
    spots: Tensor
    sampled: bool

    def region(self, n: int) -> int:
        """The elements of a region, whether they are kept or not."""
        return 32 * WORDS if self.sampled else 1024 if n < LONG else 4096


@triton.jit
def magnitude(x, at, there):
    """The magnitudes as they are compared."""
    return tl.load(x + at, mask=there, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def kept_magnitude(kept, at, there):
    """The same of elements kept."""
    return tl.load(kept + at, mask=there, other=0).to(tl.int32) & 0x7FFFFFFF


@triton.jit
def is_last(ended):
    """Whether this program is the last of its kernel to come here; then it sees what all others wrote."""
    tl.debug_barrier()
    return tl.atomic_add(ended, 1) == tl.num_programs(0) - 1


@triton.jit(do_not_specialize=["stride", "rank"])
def _sample(x, state, bins, stride, rank, TILE: tl.constexpr):
    """The magnitude of the element of this rank in a sample, rounded down to a bin's edge, and at least 1.

    One of every `stride` elements, at places that follow no period.
    """
    number = tl.program_id(0) * TILE + tl.arange(0, TILE)
    jitter = ((number.to(tl.uint32) * 0x9E3779B1) >> 8) % stride.to(tl.uint32)
    place = magnitude(x, number * stride + jitter.to(tl.int32), number >= 0) >> 16
    low = tl.min(place, 0)
    if low == tl.max(place, 0):  # equal elements do not queue for one bin
        tl.atomic_add(bins + low, TILE, sem="relaxed")
    else:
        tl.atomic_add(bins + place, tl.full((TILE,), 1, tl.int32), mask=place > 0, sem="relaxed")
    if is_last(state + 4):
        row, column = tl.arange(0, 256), tl.arange(0, EDGES // 256)
        counts = tl.load(bins + row[:, None] * (EDGES // 256) + column[None, :], cache_modifier=".cg")
        rows = tl.sum(counts, 1)
        above = tl.sum(rows, 0) - tl.cumsum(rows, 0)
        here = (above < rank) & (rank <= above + rows)
        found = tl.sum(tl.where(here, row, 0), 0)
        left = rank - tl.sum(tl.where(here, above, 0), 0)
        counts = tl.load(bins + found * (EDGES // 256) + column, cache_modifier=".cg")
        above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
        here = (above < left) & (left <= above + counts)
        edge = found * (EDGES // 256) + tl.sum(tl.where(here, column, 0), 0)
        tl.store(state, tl.maximum(edge << 16, 1))


@triton.jit
def _mark(x, n, state, marks, TILE: tl.constexpr):
    """One bit per element, 32 in a word: whether its magnitude is at least state[0]."""
    low = tl.load(state)
    lane = tl.arange(0, TILE)
    at = tl.program_id(0) * TILE + lane
    bit = tl.where(magnitude(x, at, at < n) >= low, 1 << (lane & 31), 0)
    word = tl.sum(tl.reshape(bit, (TILE // 32, 32)), 1)
    tl.store(marks + tl.program_id(0) * (TILE // 32) + tl.arange(0, TILE // 32), word)


@triton.jit
def _ones(word):
    """How many bits of each word are set."""
    word = word.to(tl.uint32, bitcast=True)
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return ((((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit(do_not_specialize=["room"])
def _gather(x, state, marks, kept, room, spots, WORDS: tl.constexpr):
    """Keep the elements whose bits are set: in order within a region of WORDS words, regions in any order."""
    region, regions = tl.program_id(0), tl.num_programs(0)
    number = tl.arange(0, WORDS)
    word = tl.load(marks + region * WORDS + number)
    ones = _ones(word)
    count = tl.sum(ones, 0)
    base = tl.atomic_add(state + 1, count, sem="relaxed")
    place = base + tl.cumsum(ones, 0) - ones
    tl.store(spots + region, base)
    tl.store(spots + regions + region, count)
    number *= 32
    for _ in range(tl.cdiv(tl.max(ones, 0), 2)):  # the lowest two bits of each word, whose elements load together
        second = word & (word - 1)
        left, to = tl.join(word, second), tl.join(place, place + 1)
        lowest = (left & -left).to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
        inside = tl.join(number, number) + ((lowest >> 23) - 127)
        chosen = (left != 0) & (to < room)
        value = tl.load(x + region * (WORDS * 32) + inside, mask=chosen, other=0.0).to(tl.int32, bitcast=True)
        entry = (inside.to(tl.int64) << 32) | (value.to(tl.int64) & 0xFFFFFFFF)
        tl.store(kept + to, entry, mask=chosen)
        word = second & (second - 1)
        place += 2


@triton.jit(do_not_specialize=["room", "k"])
def _settle(
    x,
    n,
    state,
    kept,
    room,
    bins,
    ended,
    k,
    SAMPLED: tl.constexpr,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """The bits from SHIFT upwards, WIDTH of them, and how many elements lie above."""
    BINS: tl.constexpr = 1 << WIDTH
    settled, count, off = tl.load(state + 2), tl.load(state + 1), tl.load(state + 3)
    few = SAMPLED and (k <= count) & (count <= room)
    length = tl.where(few, count, n)
    counts = tl.zeros((BINS,), tl.int32)
    for tile in range(tl.program_id(0), tl.cdiv(length, TILE), tl.num_programs(0)):
        at = tile * TILE + tl.arange(0, TILE)
        there = at < length
        if few:  # noqa: SIM108  (a branch, not a choice between two loads)
            bits = kept_magnitude(kept, at, there)
        else:
            bits = magnitude(x, at, there)
        there &= (bits >> (SHIFT + WIDTH)) == settled
        counts += tl.histogram((bits >> SHIFT) & (BINS - 1), BINS, mask=there)
    at = tl.arange(0, BINS)
    tl.atomic_add(bins + at, counts, mask=counts > 0, sem="relaxed")
    if is_last(ended):
        counts = tl.load(bins + at, cache_modifier=".cg")
        above = off + tl.sum(counts, 0) - tl.cumsum(counts, 0)
        here = (above < k) & (k <= above + counts)
        tl.store(state + 2, settled << WIDTH | tl.sum(tl.where(here, at, 0), 0))
        tl.store(state + 3, tl.sum(tl.where(here, above, 0), 0))


def find(x: Tensor, k: int) -> Found:
    """The k-th largest magnitude, and how many elements lie above it, on the device; 0 < k <= n."""
    n = x.numel()
    stride = n // SAMPLE
    rank = k * SAMPLE // n
    rank += 6 * math.isqrt(rank) + 16  # a sample that misleads by six standard deviations is none
    sampled = LONG <= n <= LONGEST and rank <= SAMPLE // 8
    sizes = [STATE, *([BINS] * len(STEPS)), EDGES.value if sampled else 0]
    state, *bins = torch.zeros(sum(sizes), dtype=torch.int32, device=x.device).split(sizes)
    kept, spots = state.view(torch.int64), state  # not read unless there was a sample
    if sampled:
        regions = triton.cdiv(n, 32 * WORDS)
        kept = torch.empty(2 * rank * n // SAMPLE, dtype=torch.int64, device=x.device)
        marks = torch.empty(regions * WORDS, dtype=torch.int32, device=x.device)
        spots = torch.empty(2, regions, dtype=torch.int32, device=x.device)
        tile = min(SAMPLE, TILE)
        _sample[(SAMPLE // tile,)](x, state, bins[-1], stride, rank, TILE=tile, num_warps=8)
        _mark[(regions * WORDS * 32 // MARKED,)](x, n, state, marks, TILE=MARKED, num_warps=8)
        _gather[(regions,)](x, state, marks, kept, kept.numel(), spots, WORDS=WORDS, num_warps=8)
    for number, (shift, width) in enumerate(STEPS):
        _settle[(min(triton.cdiv(n, TILE), PROGRAMS),)](
            x,
            n,
            state,
            kept,
            kept.numel(),
            bins[number],
            state[5 + number :],
            k,
            SAMPLED=sampled,
            SHIFT=shift,
            WIDTH=width,
            TILE=TILE,
            num_warps=8,
        )
    return Found(state, kept, spots, sampled)
