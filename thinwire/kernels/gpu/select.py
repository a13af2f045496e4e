"""The k-th largest magnitude of a vector, found on the device: three passes that count, and none that waits.

The 31 bits of a magnitude are settled from the top: 8, then 8, then 15. The first two passes count all elements, or
those that share the bits settled so far, in registers. After 16 bits few elements are left, and the third pass counts
them one by one in memory; a tile whose remaining elements are all equal, as in a vector of ties, counts them at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

TILE = 4096
EACH = 16  # tiles of a program that counts, in long vectors
COARSE, FINE = 256, 1 << 15  # bins


@triton.jit
def magnitude(x, at, n):
    """The magnitudes as they are compared, and -1 beyond the end."""
    bits = tl.load(x + at, mask=at < n, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(at < n, bits, -1)


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
    counts = tl.zeros((BINS,), tl.int32)
    settled = tl.load(state)
    for tile in range(EACH):
        bits = magnitude(x, (tl.program_id(0).to(tl.int64) * EACH + tile) * TILE + tl.arange(0, TILE), n)
        counts += tl.histogram((bits >> SHIFT) & (BINS - 1), BINS, mask=(bits >> ABOVE) == settled)
    tl.atomic_add(bins + tl.arange(0, BINS), counts, mask=counts > 0)


@triton.jit
def _count_few(x, n, state, bins, SHIFT: tl.constexpr, TILE: tl.constexpr, EACH: tl.constexpr):
    """Elements by the bits below SHIFT, of those that agree with the bits above it."""
    settled = tl.load(state)
    for tile in range(EACH):
        bits = magnitude(x, (tl.program_id(0).to(tl.int64) * EACH + tile) * TILE + tl.arange(0, TILE), n)
        left = (bits >> SHIFT) == settled
        rest = bits & ((1 << SHIFT) - 1)
        low = tl.min(tl.where(left, rest, 1 << SHIFT), 0)
        if low == tl.max(tl.where(left, rest, -1), 0):
            tl.atomic_add(bins + low, tl.sum(left.to(tl.int32), 0))
        elif low < (1 << SHIFT):
            tl.atomic_add(bins + rest, tl.full((TILE,), 1, tl.int32), mask=left)


@triton.jit
def _settle(state, bins, WIDTH: tl.constexpr):
    """The bin that holds the one looked for: its bits join the settled ones, and those above it are counted off."""
    at = tl.arange(0, 1 << WIDTH)
    counts = tl.load(bins + at)
    settled, wanted = tl.load(state), tl.load(state + 1)
    above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
    here = (above < wanted) & (wanted <= above + counts)
    found = tl.sum(tl.where(here, at, 0), 0)
    tl.debug_barrier()
    tl.store(state, settled << WIDTH | found)
    tl.store(state + 1, wanted - tl.sum(tl.where(here, above, 0), 0))


def largest(x: Tensor, k: int) -> Tensor:
    """Two int32 on the device: the k-th largest magnitude, and how many of the k are equal to it; 0 < k <= n."""
    n = x.numel()
    work = torch.zeros(2 + 2 * COARSE + FINE, dtype=torch.int32, device=x.device)
    state: Tensor
    state, first, second, third = work.split([2, COARSE, COARSE, FINE])
    state[1:].fill_(k)
    each = EACH if n > TILE * EACH * 64 else 1
    grid = (triton.cdiv(n, TILE * each),)
    _count[grid](x, n, state, first, ABOVE=31, SHIFT=23, BINS=COARSE, TILE=TILE, EACH=each, num_warps=4)
    _settle[(1,)](state, first, WIDTH=8)
    _count[grid](x, n, state, second, ABOVE=23, SHIFT=15, BINS=COARSE, TILE=TILE, EACH=each, num_warps=4)
    _settle[(1,)](state, second, WIDTH=8)
    _count_few[grid](x, n, state, third, SHIFT=15, TILE=TILE, EACH=each, num_warps=4)
    _settle[(1,)](state, third, WIDTH=15, num_warps=16)
    return state
