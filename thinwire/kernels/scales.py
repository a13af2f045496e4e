"""The scales of blocks in plain torch, summed in the order of the kernels.

Sums run in float64 over 64 lanes, row by row, then by halving, in segments of 65536 elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.kernels.spec import LANES, TOP, Norm

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.spec import Blocks, Quant

SEGMENT = 1 << 16


def _lane_sums(rows: Tensor) -> Tensor:
    """The sum of each row of (count, k * 64) float64 in the order of the kernels."""
    acc = rows.new_zeros(len(rows), LANES)
    for start in range(0, rows.shape[1], LANES):
        acc = acc + rows[:, start : start + LANES]
    while acc.shape[1] > 1:
        half = acc.shape[1] // 2
        acc = acc[:, :half] + acc[:, half:]
    return acc[:, 0]


def _rows_of(values: Tensor, size: int) -> Tensor:
    """Runs of `size` elements as rows, padded to whole lanes with zeros, which add nothing."""
    count, whole = -(-values.numel() // size), values.numel() // size
    rows = values.new_zeros(count, -(-size // LANES) * LANES)
    rows[:whole, :size] = values[: whole * size].view(whole, size)
    if whole < count:
        rows[whole, : values.numel() - whole * size] = values[whole * size :]
    return rows


def _sums(values: Tensor, blocks: Blocks) -> Tensor:
    """The sum of every block; a large block is summed in segments, which are then added in order."""
    if blocks.starts is None and blocks.size <= SEGMENT:
        return _lane_sums(_rows_of(values, blocks.size))
    totals = []
    for a, b in blocks.ranges():
        total = values.new_zeros(())
        for part in _lane_sums(_rows_of(values[a:b], min(SEGMENT, b - a))):
            total = total + part
        totals.append(total)
    return torch.stack(totals)


def find_scales(p: Tensor, quant: Quant, blocks: Blocks) -> Tensor:
    """The scales of every block of `p` (float32), between -2^126 and 2^126; NaN where a block is not finite."""
    match quant.norm:
        case Norm.L2 | Norm.MEAN | Norm.SIDES:
            scales = _from_sums(p.double(), quant.norm, blocks)
        case Norm.CLIPPED:
            scales = _clipped(p.double(), quant.clip, blocks)
        case _:
            low, high = _ends(p, blocks)
            top = torch.maximum(low.abs(), high.abs())
            scales = torch.stack([low, high], 1) if quant.norm is Norm.RANGE else top[:, None]
            scales = torch.where(top.isfinite()[:, None], scales, torch.nan)
            if quant.norm is Norm.UNIT:
                scales = torch.where(scales.isnan(), torch.nan, 1.0)
    finite = scales.isfinite().all(1, keepdim=True)
    capped = scales.clamp(-TOP, TOP).float() + 0.0  # + 0: one sign of zero
    return torch.where(finite, capped, torch.nan).view(-1)


def _ends(p: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    index = blocks.index.to(p.device)
    low = p.new_full((blocks.count,), torch.inf).scatter_reduce(0, index, p, "amin")
    return low, p.new_full((blocks.count,), -torch.inf).scatter_reduce(0, index, p, "amax")


def _sizes(blocks: Blocks, like: Tensor) -> Tensor:
    return torch.tensor([b - a for a, b in blocks.ranges()], dtype=torch.float64, device=like.device)


def _from_sums(x: Tensor, norm: Norm, blocks: Blocks) -> Tensor:
    if norm is Norm.L2:
        return _sums(x * x, blocks).sqrt()[:, None]
    if norm is Norm.MEAN:
        return (_sums(x.abs(), blocks) / _sizes(blocks, x))[:, None]
    up = x >= 0
    high = torch.zeros(blocks.count, dtype=torch.float64, device=x.device)
    high.index_add_(0, blocks.index.to(x.device), up.double())
    low = _sizes(blocks, x) - high
    below, above = _sums(torch.where(up, 0.0, x), blocks), _sums(torch.where(up, x, 0.0), blocks)
    means = torch.stack([below / low.clamp(min=1), above / high.clamp(min=1)], 1)
    return torch.where((below + above).isfinite()[:, None], means, torch.nan)


def _clipped(x: Tensor, clip: float, blocks: Blocks) -> Tensor:
    """min(largest magnitude, clip standard deviations); a block of equal elements is not clipped."""
    sizes = _sizes(blocks, x)
    low, high = _ends(x, blocks)
    top = torch.maximum(low.abs(), high.abs())
    mean, square = _sums(x, blocks) / sizes, _sums(x * x, blocks) / sizes
    variance = square - mean * mean
    limit = torch.tensor(clip, dtype=torch.float32, device=x.device).double() * variance.clamp(min=0).sqrt()
    scale = torch.where((variance > square * 2.0**-40) & (limit < top), limit, top)
    return torch.where((mean + square).isfinite(), scale, torch.nan)[:, None]
