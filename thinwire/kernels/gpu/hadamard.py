"""Rotations in Triton: signs, butterflies, scaling and the final sum in one pass over memory.

A program holds a tile of 4096 elements, one block or several, and runs its butterflies in registers. Blocks of more
than 8192 take two passes: distances below 4096 in the first, and in the second tiles of a few runs that lie 4096
apart, which they find in the cache. Bits equal those of `kernels.hadamard`, since every butterfly is one addition and
one subtraction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from thinwire.kernels.gpu.butterfly import butterflies, flips, signed
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.spec import TOP

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.hadamard import Blocking

TILE = 12  # log2 of the elements of a program
ALONE = 13  # log2 of the largest block that one program holds
PART = 1 << 26
"""Elements that go through both passes of larger blocks. Of fewer the second pass finds more in the cache, but launches
take longer: on one H200 0.258 ms for 2^26 elements at once, 0.263 in parts of 2^24, 0.274 of 2^23 (gpu_variants.py)."""
WORDS = ("k0", "k1", "first", "c1", "c2", "c3")
LIMIT = tl.constexpr(TOP)


@triton.jit
def bounded(x):
    """At most 2^126 in magnitude; NaN remains."""
    return tl.where(x == x, tl.minimum(tl.maximum(x, -LIMIT), LIMIT), x)


@Ready
@triton.jit(do_not_specialize=[*WORDS, "begin", "stop", "limit"])
def _turn(
    source,
    target,
    added,
    k0,
    k1,
    first,
    c1,
    c2,
    c3,
    begin,
    stop,
    limit,
    factor,
    scale,
    weight,
    SIZE: tl.constexpr,  # log2 of the elements of a program
    FIRST: tl.constexpr,  # log2 of the smallest distance
    STAGES: tl.constexpr,
    BEFORE: tl.constexpr,  # signs before the butterflies
    AFTER: tl.constexpr,  # signs after them
    FACTOR: tl.constexpr,  # 0 none, 1 a number, 2 its address, 3 one per block; of the result with ADD, else input
    BLOCK: tl.constexpr,  # elements that share a factor
    ADD: tl.constexpr,
    WHOLE: tl.constexpr,  # every tile lies inside the region, and the region below `limit`
):
    """Elements begin .. stop - 1 of `source` to `target`; with ADD, the first `limit` into `added` instead."""
    TILE: tl.constexpr = 1 << SIZE
    RUN: tl.constexpr = 1 << (SIZE - STAGES if FIRST else SIZE)
    APART: tl.constexpr = 1 << FIRST
    program = tl.program_id(0).to(tl.int64)
    base = begin // 128 * 128
    if FIRST:
        program = tl.num_programs(0) - 1 - program  # what the first pass wrote last is still in the cache
        base += program // (APART // RUN) * (APART << STAGES) + program % (APART // RUN) * RUN
    else:
        base += program * TILE
    place = tl.arange(0, TILE)
    at = base + (place // RUN * APART + place % RUN if FIRST else place)  # kept plain, so that loads are wide
    inside = None if WHOLE else (at >= begin) & (at < stop)
    kept = None if WHOLE else inside & (at < limit)
    if BEFORE or AFTER:
        call = tl.arange(0, TILE // 128) * 128
        flip = flips((base + call // RUN * APART + call % RUN) // 128, k0, k1, first, c1, c2, c3, TILE)
    unit = factor
    if FACTOR == 2:
        unit = tl.load(factor)
    x = tl.load(source + at, mask=inside if ADD else kept, other=None if WHOLE else 0.0)
    if FACTOR and not ADD:
        x = x * unit
    if BEFORE:
        x = tl.where(flip, -x, x)
    x = butterflies(x, TILE, SIZE - STAGES if FIRST else 0, STAGES)
    x = x * scale
    if AFTER:
        x = tl.where(flip, -x, x)
    if ADD:
        if FACTOR == 3:
            x = tl.where(tl.abs(x) < float("inf"), bounded(x), float("nan"))
            unit = tl.load(factor + at // BLOCK, mask=kept, other=None if WHOLE else 0.0)
            value = tl.where(tl.abs(unit) < float("inf"), bounded(x * unit), float("nan"))
        else:
            value = bounded(x * unit)
        value = tl.where(tl.abs(x) < float("inf"), value, float("nan"))
        before = tl.load(added + at, mask=kept, other=None if WHOLE else 0.0)
        tl.store(added + at, before + value * weight, mask=kept)
    else:
        tl.store(target + at, x, mask=inside)


@triton.jit
def _peak(x, peak, n, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    bits = tl.load(x + at, mask=at < n, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.atomic_max(peak, tl.max(tl.where(bits < 0x7F800000, bits, 0), 0))


def unit(x: Tensor) -> Tensor:
    """The unit, a scalar on the device: the host does not wait for it."""
    peak = torch.zeros(1, dtype=torch.int32, device=x.device)
    if x.numel():
        _peak[(triton.cdiv(x.numel(), 8192),)](x, peak, x.numel(), TILE=8192, num_warps=8)
    power = ((peak >> 23) + 1).clamp(max=253) << 23  # a power of two above the largest
    return torch.where(peak > 0, power.view(torch.float32), 1.0)[0]


def hadamard(x: Tensor, block: int) -> None:
    """H of every block, in place."""
    for region in _regions(x.numel(), block, 0):
        _pass(x, x, x, None, region, x.numel())


def rotate(x: Tensor, cut: Blocking, words: Sequence[list[int]], factor: float | Tensor) -> Tensor:
    """H D ... H D (factor x)."""
    out = torch.empty(cut.padded, device=x.device)
    for number, one in enumerate(words):
        source, limit = (out, cut.padded) if number else (x, cut.n)
        for region in _regions(cut.full * cut.block, cut.block, cut.last):
            _pass(source, out, out, one, region, limit, factor=1.0 if number else factor)
    return out


def unrotate_add(
    r: Tensor, cut: Blocking, words: Sequence[list[int]], out: Tensor, unit: float | Tensor, weight: float
) -> None:
    """`out += weight * unit * (rotated back)`; `r` is overwritten. There may be a unit for every block."""
    each = cut.block if isinstance(unit, torch.Tensor) and unit.dim() else 0
    for number, one in enumerate(reversed(words), 1):
        for region in _regions(cut.full * cut.block, cut.block, cut.last):
            if number == len(words):
                _pass(r, r, out, one, region, cut.n, factor=unit, weight=weight, each=each, back=True, add=True)
            else:
                _pass(r, r, r, one, region, cut.padded, back=True)


Region = tuple[int, int, int, bool]


def _regions(full: int, block: int, last: int) -> list[Region]:
    """(begin, end, size of a block, whether all tiles are whole): the full blocks, then the last."""
    tile = max(1 << TILE, block)
    whole = full // tile * tile
    part = max(block, PART) if block > 1 << ALONE else max(1, whole)
    regions = [(begin, min(whole, begin + part), block, True) for begin in range(0, whole, part)]
    regions += [(whole, full, block, False), (full, full + last, last, False)]
    return [region for region in regions if region[0] < region[1]]


def _pass(
    source: Tensor,
    target: Tensor,
    added: Tensor,
    words: Sequence[int] | None,
    region: Region,
    limit: int,
    *,
    factor: float | Tensor = 1.0,
    weight: float = 1.0,
    each: int = 0,
    back: bool = False,
    add: bool = False,
) -> None:
    """The butterflies of a region, in one launch or two."""
    begin, stop, block, whole = region
    stages, given = block.bit_length() - 1, signed(words or [0] * 6)
    steps = [(0, stages)] if stages <= ALONE else [(0, TILE), (TILE, stages - TILE)]
    kind = 3 if each else 2 if isinstance(factor, torch.Tensor) else int(factor != 1.0)
    for number, (first, count) in enumerate(steps):
        final = number == len(steps) - 1
        tile = max(TILE, count)
        here = kind if (final if add else number == 0) else 0
        _turn[(triton.cdiv(stop - begin // 128 * 128, 1 << tile),)](
            source if number == 0 else target,
            target,
            added,
            *given,
            begin,
            stop,
            limit if add or number == 0 else stop,
            factor if here else 1.0,
            math.sqrt(1.0 / block) if final else 1.0,
            weight,
            SIZE=tile,
            FIRST=first,
            STAGES=count,
            BEFORE=words is not None and not back and number == 0,
            AFTER=words is not None and back and final,
            FACTOR=here,
            BLOCK=each,
            ADD=add and final,
            WHOLE=whole,
            num_warps=8 if count > TILE else 4,
            enable_fp_fusion=False,
        )
