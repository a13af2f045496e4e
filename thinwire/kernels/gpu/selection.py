"""Selection in Triton: find a threshold on the device, then write what reaches it in the order of the indices.

`top` and `top_blocks` know the sizes of their results and never wait for the device. `over` waits once, for its
count. Bits equal those of `kernels.selection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from thinwire.kernels.gpu.select import TILE, largest, magnitude

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 4096  # elements of a program of `top_blocks`, unless one block has more
HELD = 1 << 14  # elements of the largest block that a program holds


@triton.jit
def _tally(x, n, state, tallies, TILE: tl.constexpr):
    """How many elements of each tile are above the threshold, and how many equal it."""
    tile = tl.program_id(0)
    bits = magnitude(x, tile.to(tl.int64) * TILE + tl.arange(0, TILE), n)
    floor = tl.load(state)
    tl.store(tallies + tile, tl.sum((bits > floor).to(tl.int32), 0))
    tl.store(tallies + tl.num_programs(0) + tile, tl.sum((bits == floor).to(tl.int32), 0))


@triton.jit
def _write(x, n, state, sums, tallies, indices, values, TILE: tl.constexpr):
    """Elements above the threshold, and the first `state[1]` of those that equal it."""
    tile = tl.program_id(0)
    tiles = tl.num_programs(0)
    at = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    bits = magnitude(x, at, n)
    floor, wanted = tl.load(state), tl.load(state + 1)
    above, equal = bits > floor, bits == floor
    # Both counts in one sum: a tile has fewer than 2^16 elements.
    step = above.to(tl.int32) + (equal.to(tl.int32) << 16)
    before = tl.cumsum(step, 0) - step
    above_before = tl.load(sums + tile) - tl.load(tallies + tile) + (before & 0xFFFF)
    equal_before = tl.load(sums + tiles + tile) - tl.load(tallies + tiles + tile) + (before >> 16)
    chosen = above | (equal & (equal_before < wanted))
    place = above_before + tl.minimum(equal_before, wanted)
    tl.store(indices + place, at, mask=chosen)
    tl.store(values + place, tl.load(x + at, mask=chosen, other=0.0), mask=chosen)


@triton.jit
def _top_blocks(x, n, places, values, k, block, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = tl.arange(0, WIDTH)[None, :]
    at = row * block + inside
    there = (inside < block) & (at < n)
    bits = tl.load(x + at, mask=there, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bits = tl.where(there, bits, -1)
    wanted = tl.minimum(k, tl.sum(there.to(tl.int32), 1, keep_dims=True))
    floor = tl.zeros((ROWS, 1), tl.int32)
    for bit in range(31):  # the largest number that `wanted` magnitudes reach, from its highest bit
        higher = floor | (1 << (30 - bit))
        reached = tl.sum((bits >= higher).to(tl.int32), 1, keep_dims=True)
        floor = tl.where(reached >= wanted, higher, floor)
    above, equal = bits > floor, bits == floor
    left = wanted - tl.sum(above.to(tl.int32), 1, keep_dims=True)
    step = above.to(tl.int32) + (equal.to(tl.int32) << 16)
    before = tl.cumsum(step, 1) - step
    chosen = there & (above | (equal & ((before >> 16) < left)))
    place = row * tl.minimum(k, block) + (before & 0xFFFF) + tl.minimum(before >> 16, left)
    tl.store(places + place, inside + tl.zeros_like(bits), mask=chosen)
    tl.store(values + place, tl.load(x + at, mask=chosen, other=0.0), mask=chosen)


@triton.jit
def _add_at(out, indices, values, count, weight, bad, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < count
    place = tl.load(indices + at, mask=there, other=0)
    value = tl.load(values + at, mask=there, other=0.0)
    tl.store(out + place, tl.load(out + place, mask=there, other=0.0) + value * weight, mask=there)
    tl.atomic_max(bad, tl.max(((value - value) != 0.0).to(tl.int32), 0))


@triton.jit
def _spoil(out, n, bad, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    if tl.load(bad) != 0:
        tl.store(out + at, tl.full((TILE,), float("nan"), tl.float32), mask=at < n)


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the `k` largest magnitudes."""
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=x.device), torch.empty(0, device=x.device)
    state = largest(x, k)
    return _compact(x, state, *_tallied(x, state), k)


def over(x: Tensor, floor: int) -> tuple[Tensor, Tensor]:
    """Indices and values of every magnitude of at least `floor`; waits for the device once, to know how many."""
    if not x.numel():
        return torch.empty(0, dtype=torch.int64, device=x.device), torch.empty(0, device=x.device)
    state = torch.zeros(2, dtype=torch.int32, device=x.device)
    state[:1].fill_(floor - 1)
    tallies, sums = _tallied(x, state)
    return _compact(x, state, tallies, sums, int(sums[0, -1]))


def top_blocks(x: Tensor, block: int, k: int, count: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of every block, `count` in all; one program holds a block, or several."""
    if block > HELD:
        return _large_blocks(x, block, k, count)
    places = torch.empty(count, dtype=torch.int32, device=x.device)
    values = torch.empty(count, device=x.device)
    if count:
        width = triton.next_power_of_2(block)
        rows = max(1, ROWS // width)
        _top_blocks[(triton.cdiv(x.numel(), rows * block),)](
            x, x.numel(), places, values, k, block, WIDTH=width, ROWS=rows, num_warps=16 if width > ROWS else 8
        )
    return places, values


def add_at(out: Tensor, indices: Tensor, values: Tensor, weight: float) -> None:
    """`out[indices] += weight * values`, and NaN everywhere if a value is not finite, which the device finds out."""
    count, n = values.numel(), out.numel()
    if count:
        bad = torch.zeros(1, dtype=torch.int32, device=out.device)
        _add_at[(triton.cdiv(count, 1024),)](
            out, indices.contiguous(), values.contiguous(), count, weight, bad, TILE=1024, enable_fp_fusion=False
        )
        _spoil[(triton.cdiv(n, TILE),)](out, n, bad, TILE=TILE)


def _large_blocks(x: Tensor, block: int, k: int, count: int) -> tuple[Tensor, Tensor]:
    parts = [top(part, min(k, part.numel())) for part in x.split(block)]
    places, values = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    assert places.numel() == count
    return places.to(torch.int32), values


def _tallied(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Of each tile, the elements above the threshold and those equal to it; and the running sums."""
    tallies = torch.empty(2, triton.cdiv(x.numel(), TILE), dtype=torch.int32, device=x.device)
    _tally[(tallies.shape[1],)](x, x.numel(), state, tallies, TILE=TILE, num_warps=4)
    return tallies, tallies.cumsum(1, dtype=torch.int32)


def _compact(x: Tensor, state: Tensor, tallies: Tensor, sums: Tensor, count: int) -> tuple[Tensor, Tensor]:
    indices = torch.empty(count, dtype=torch.int64, device=x.device)
    values = torch.empty(count, device=x.device)
    _write[(tallies.shape[1],)](x, x.numel(), state, sums, tallies, indices, values, TILE=TILE, num_warps=8)
    return indices, values
