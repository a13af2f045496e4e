"""The k-th largest magnitude of a vector, found on the device: passes that count, and none that waits.

In a long vector, a sample says what magnitude a few more than k elements reach. A pass counts the elements from there
to the double in 2^15 bins, few of them, each with an addition in memory; a second one settles the last 8 bits. Where
the sample misled, which the device notices, the passes for short vectors follow; otherwise these end at once.

They settle the 31 bits of a magnitude from the top: 8, then 8, then 15. The first two count all elements, or those
that share the bits settled so far, in registers; the third counts those left one by one. A tile whose elements are
all equal, as in a vector of ties, counts them at once.

`state` is the magnitude found, how many elements are still to be counted off, 1 where the sample is not used or
misled, and the bits settled so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

TILE = 4096
EACH = 16  # tiles of a program that counts, in long vectors
COARSE, FINE = 256, 1 << 15  # bins
LONG = 1 << 22  # elements of a vector that is worth a sample
STRIDE = 64  # of the sample
NEAR = 8  # the bits that the first pass after the sample leaves open


@triton.jit
def magnitude(x, at, n):
    """The magnitudes as they are compared, and -1 beyond the end."""
    bits = tl.load(x + at, mask=at < n, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(at < n, bits, -1)


@triton.jit
def _add_few(bins, place, left, END: tl.constexpr, TILE: tl.constexpr):
    """Count the places below END of the elements that are `left`."""
    low = tl.min(tl.where(left, place, END), 0)
    if low == tl.max(tl.where(left, place, -1), 0):
        tl.atomic_add(bins + low, tl.sum(left.to(tl.int32), 0))
    elif low < END:
        tl.atomic_add(bins + place, tl.full((TILE,), 1, tl.int32), mask=left)


@triton.jit
def _count_near(
    x, n, state, base, bins, SHIFT: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr, EACH: tl.constexpr
):
    """Elements from the magnitude `base` upwards, in bins of 2^SHIFT; those beyond the last in one more."""
    if tl.load(state + 2) == 0:
        start = tl.load(base)
        above = 0
        for tile in range(EACH):
            bits = magnitude(x, (tl.program_id(0).to(tl.int64) * EACH + tile) * TILE + tl.arange(0, TILE), n)
            place = (bits - start) >> SHIFT
            reached = bits >= start
            above += tl.sum((reached & (place >= BINS)).to(tl.int32), 0)
            _add_few(bins, place, reached & (place < BINS), BINS, TILE)
        tl.atomic_add(bins + BINS, above)


@triton.jit
def _settle_near(state, base, bins, SHIFT: tl.constexpr, BINS: tl.constexpr):
    """The bin of the one looked for, or the flag in state[2] if it is in none."""
    at = tl.arange(0, BINS)
    counts = tl.load(bins + at)
    start, wanted, missed = tl.load(base), tl.load(state + 1), tl.load(state + 2)
    if SHIFT:
        wanted -= tl.load(bins + BINS)
    total = tl.sum(counts, 0)
    above = total - tl.cumsum(counts, 0)
    here = (above < wanted) & (wanted <= above + counts)
    found = tl.sum(tl.where(here, at, 0), 0)
    left = wanted - tl.sum(tl.where(here, above, 0), 0)
    if missed == 0:
        if (wanted > 0) & (wanted <= total):
            tl.store(state, start + (found << SHIFT))
            tl.store(state + 1, left)
        else:
            tl.store(state + 2, 1)


@triton.jit
def _count(
    x,
    n,
    state,
    bins,
    ABOVE: tl.constexpr,
    SHIFT: tl.constexpr,
    BINS: tl.constexpr,
    TILE: tl.constexpr,
    EACH: tl.constexpr,
):
    """Elements by the bits at SHIFT, of those that agree with the settled bits, which begin at ABOVE."""
    if tl.load(state + 2) != 0:
        counts = tl.zeros((BINS,), tl.int32)
        settled = tl.load(state + 3)
        for tile in range(EACH):
            bits = magnitude(x, (tl.program_id(0).to(tl.int64) * EACH + tile) * TILE + tl.arange(0, TILE), n)
            counts += tl.histogram((bits >> SHIFT) & (BINS - 1), BINS, mask=(bits >> ABOVE) == settled)
        tl.atomic_add(bins + tl.arange(0, BINS), counts, mask=counts > 0)


@triton.jit
def _count_few(x, n, state, bins, SHIFT: tl.constexpr, TILE: tl.constexpr, EACH: tl.constexpr):
    """Elements by the bits below SHIFT, of those that agree with the bits above it."""
    if tl.load(state + 2) != 0:
        settled = tl.load(state + 3)
        for tile in range(EACH):
            bits = magnitude(x, (tl.program_id(0).to(tl.int64) * EACH + tile) * TILE + tl.arange(0, TILE), n)
            _add_few(bins, bits & ((1 << SHIFT) - 1), (bits >> SHIFT) == settled, 1 << SHIFT, TILE)


@triton.jit
def _settle(state, bins, WIDTH: tl.constexpr, LAST: tl.constexpr):
    """The bin that holds the one looked for: its bits join the settled ones, and those above it are counted off."""
    at = tl.arange(0, 1 << WIDTH)
    counts = tl.load(bins + at)
    wanted, wide, settled = tl.load(state + 1), tl.load(state + 2), tl.load(state + 3)
    above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
    here = (above < wanted) & (wanted <= above + counts)
    found = settled << WIDTH | tl.sum(tl.where(here, at, 0), 0)
    left = wanted - tl.sum(tl.where(here, above, 0), 0)
    if wide != 0:
        tl.store(state + 1, left)
        tl.store(state + 3, found)
        if LAST:
            tl.store(state, found)


def largest(x: Tensor, k: int) -> Tensor:
    """`state`: the k-th largest magnitude, and how many of the k are equal to it, on the device; 0 < k <= n."""
    n = x.numel()
    sizes = [4, FINE + 1, COARSE + 1, COARSE, COARSE, FINE]
    state, near, nearest, first, second, third = torch.zeros(sum(sizes), dtype=torch.int32, device=x.device).split(
        sizes
    )
    found: Tensor = state
    state[1:2].fill_(k)
    each = EACH if n > TILE * EACH * 64 else 1
    grid, tile = (triton.cdiv(n, TILE * each),), {"TILE": TILE, "EACH": each, "num_warps": 4}
    rank = k // STRIDE + 6 * math.isqrt(k // STRIDE) + 16
    if n >= LONG and rank < n // STRIDE // 2:
        guess = largest(x[::STRIDE].contiguous(), rank)
        _count_near[grid](x, n, state, guess, near, SHIFT=NEAR, BINS=FINE, **tile)
        _settle_near[(1,)](state, guess, near, SHIFT=NEAR, BINS=FINE, num_warps=16)
        _count_near[grid](x, n, state, state, nearest, SHIFT=0, BINS=COARSE, **tile)
        _settle_near[(1,)](state, state, nearest, SHIFT=0, BINS=COARSE)
    else:
        state[2:3].fill_(1)
    _count[grid](x, n, state, first, ABOVE=31, SHIFT=23, BINS=COARSE, **tile)
    _settle[(1,)](state, first, WIDTH=8, LAST=False)
    _count[grid](x, n, state, second, ABOVE=23, SHIFT=15, BINS=COARSE, **tile)
    _settle[(1,)](state, second, WIDTH=8, LAST=False)
    _count_few[grid](x, n, state, third, SHIFT=15, **tile)
    _settle[(1,)](state, third, WIDTH=15, LAST=True, num_warps=16)
    return found
