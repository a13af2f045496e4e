"""Selection in Triton: find a threshold on the device, then write what reaches it in the order of the indices.

`top` and `top_blocks` know the sizes of their results and never wait for the device. `over` waits once, for its
count. Bits equal those of `kernels.selection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from thinwire.kernels.gpu.select import Found, find, kept_magnitude, magnitude

if TYPE_CHECKING:
    from torch import Tensor

TILE = 4096
GROUP, LANES = 4, 256  # regions of a program that writes what was found, and the elements of each at a time
ROWS = 4096  # elements of a program of `top_blocks`, unless one block has more
HELD = 1 << 14  # elements of the largest block that a program holds


@triton.jit
def _few(state, k, room, SAMPLED: tl.constexpr):
    """Whether the elements looked for are among those kept (see `gpu.select`)."""
    count = tl.load(state + 1)
    return SAMPLED and (k <= count) & (count <= room)


@triton.jit
def _rows(n, spots, regions, few, SAMPLED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """The regions of a program, and where the elements of each begin and how many they are."""
    region = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begin = region.to(tl.int64) * SIZE
    count = tl.maximum(tl.minimum(n - begin, SIZE), 0).to(tl.int32)
    if SAMPLED:
        there = region < regions
        begin = tl.where(few, tl.load(spots + region, mask=there, other=0).to(tl.int64), begin)
        count = tl.where(few, tl.load(spots + regions + region, mask=there, other=0), count)
    return region, begin, count


@triton.jit(do_not_specialize=["room", "regions", "k"])
def _tally(
    x,
    n,
    state,
    kept,
    room,
    spots,
    tallies,
    regions,
    k,
    SAMPLED: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """How many elements of each region are above the threshold, and 2^32 times how many equal it; then the sums."""
    few = _few(state, k, room, SAMPLED)
    region, begin, count = _rows(n, spots, regions, few, SAMPLED, ROWS, SIZE)
    floor = tl.load(state + 2)
    above, equal = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32)
    for step in range(0, tl.max(count, 0), LANES):
        lane = step + tl.arange(0, LANES)[None, :]
        there = lane < count[:, None]
        if few:
            bits = kept_magnitude(kept, begin[:, None] + lane, there)
        else:
            bits = magnitude(x, begin[:, None] + lane, there)
        above += tl.sum((there & (bits > floor)).to(tl.int32), 1)
        equal += tl.sum((there & (bits == floor)).to(tl.int32), 1)
    tally = above.to(tl.int64) | (equal.to(tl.int64) << 32)
    tl.store(tallies + region, tally, mask=region < regions)
    tl.store(tallies + regions + tl.program_id(0), tl.sum(tally, 0))


@triton.jit(do_not_specialize=["room", "regions", "k"])
def _write(
    x,
    n,
    state,
    kept,
    room,
    spots,
    tallies,
    regions,
    k,
    indices,
    values,
    SAMPLED: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Elements above the threshold, and as many of the first that equal it as are left of k."""
    few = _few(state, k, room, SAMPLED)
    region, begin, count = _rows(n, spots, regions, few, SAMPLED, ROWS, SIZE)
    floor, wanted = tl.load(state + 2), k - tl.load(state + 3)
    # What lies before this program: the sums of those before it.
    sums = tl.zeros((512,), tl.int64)
    for step in range(0, tl.program_id(0), 512):
        at = step + tl.arange(0, 512)
        sums += tl.load(tallies + regions + at, mask=at < tl.program_id(0), other=0)
    tally = tl.load(tallies + region, mask=region < regions, other=0)
    past = tl.sum(sums, 0) + tl.cumsum(tally, 0) - tally
    above_past, equal_past = past.to(tl.int32)[:, None], (past >> 32).to(tl.int32)[:, None]
    for step in range(0, tl.max(count, 0), LANES):
        lane = step + tl.arange(0, LANES)[None, :]
        there = lane < count[:, None]
        if few:
            entry = tl.load(kept + begin[:, None] + lane, mask=there, other=0)
            word, inside = entry.to(tl.int32), (entry >> 32).to(tl.int32)
        else:
            word = tl.load(x + begin[:, None] + lane, mask=there, other=0.0).to(tl.int32, bitcast=True)
            inside = lane + tl.zeros((ROWS, 1), tl.int32)
        bits = word & 0x7FFFFFFF
        above, equal = (there & (bits > floor)).to(tl.int32), (there & (bits == floor)).to(tl.int32)
        # Both counts in one sum: a row has fewer than 2^16 lanes.
        both = above | (equal << 16)
        before = tl.cumsum(both, 1) - both
        above_before, equal_before = above_past + (before & 0xFFFF), equal_past + (before >> 16)
        chosen = (above != 0) | ((equal != 0) & (equal_before < wanted))
        place = above_before + tl.minimum(equal_before, wanted)
        tl.store(indices + place, region[:, None].to(tl.int64) * SIZE + inside, mask=chosen)
        tl.store(values + place, word.to(tl.float32, bitcast=True), mask=chosen)
        above_past += tl.sum(above, 1, keep_dims=True)
        equal_past += tl.sum(equal, 1, keep_dims=True)


@triton.jit(do_not_specialize=["k"])
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


@triton.jit(do_not_specialize=["count"])
def _add_at(out, indices, values, count, weight, bad, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < count
    place = tl.load(indices + at, mask=there, other=0)
    value = tl.load(values + at, mask=there, other=0.0)
    tl.store(out + place, tl.load(out + place, mask=there, other=0.0) + value * weight, mask=there)
    tl.atomic_max(bad, tl.max(((value - value) != 0.0).to(tl.int32), 0), sem="relaxed")


@triton.jit
def _spoil(out, n, bad, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    if tl.load(bad) != 0:
        tl.store(out + at, tl.full((TILE,), float("nan"), tl.float32), mask=at < n)


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the `k` largest magnitudes."""
    if k == 0:
        return _nothing(x)
    found = find(x, k)
    return _compact(x, found, _tallied(x, found, k), k, k)


def over(x: Tensor, floor: int) -> tuple[Tensor, Tensor]:
    """Indices and values of every magnitude of at least `floor`; waits for the device once, to know how many."""
    if not x.numel():
        return _nothing(x)
    state = torch.zeros(4, dtype=torch.int32, device=x.device)
    state[2:3].fill_(floor - 1)
    found = Found(state, state.view(torch.int64), state, sampled=False)
    tallies = _tallied(x, found, 0)
    count = int((tallies[triton.cdiv(x.numel(), found.region(x.numel())) :] & 0xFFFFFFFF).sum())
    return _compact(x, found, tallies, 0, count)


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


def _nothing(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty(0, dtype=torch.int64, device=x.device), torch.empty(0, device=x.device)


def _tallied(x: Tensor, found: Found, k: int) -> Tensor:
    """Of each region, the elements above the threshold and those equal to it; then the sums of each program."""
    regions = triton.cdiv(x.numel(), found.region(x.numel()))
    tallies = torch.empty(regions + triton.cdiv(regions, GROUP), dtype=torch.int64, device=x.device)
    _tally[(tallies.numel() - regions,)](*_given(x, found, tallies, regions, k), **_shape(x, found))
    return tallies


def _compact(x: Tensor, found: Found, tallies: Tensor, k: int, count: int) -> tuple[Tensor, Tensor]:
    indices = torch.empty(count, dtype=torch.int64, device=x.device)
    values = torch.empty(count, device=x.device)
    regions = triton.cdiv(x.numel(), found.region(x.numel()))
    given = _given(x, found, tallies, regions, k)
    _write[(tallies.numel() - regions,)](*given, indices, values, **_shape(x, found))
    return indices, values


def _given(x: Tensor, found: Found, tallies: Tensor, regions: int, k: int) -> tuple[Tensor | int, ...]:
    return x, x.numel(), found.state, found.kept, found.kept.numel(), found.spots, tallies, regions, k


def _shape(x: Tensor, found: Found) -> dict[str, int | bool]:
    size = found.region(x.numel())
    return {"SAMPLED": found.sampled, "ROWS": GROUP, "LANES": LANES, "SIZE": size, "num_warps": 4}
