"""The scales of blocks in plain torch, summed in the order of the kernels.

Sums run in float64 over 64 lanes, row by row, then by halving, in segments of 65536 elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.kernels.spec import LANES, TOP, Norm

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.spec import Blocks

SEGMENT = 1 << 16


def _sum_of(values: Tensor) -> Tensor:
    """Sum of a float64 vector in the order of the kernels."""
    total = values.new_zeros(())
    for start in range(0, values.numel(), SEGMENT):
        segment = values[start : start + SEGMENT]
        rows = -(-segment.numel() // LANES)
        padded = values.new_zeros(rows * LANES)
        padded[: segment.numel()] = segment
        acc = values.new_zeros(LANES)
        for row in padded.view(rows, LANES):
            acc = acc + row
        while acc.numel() > 1:
            half = acc.numel() // 2
            acc = acc[:half] + acc[half:]
        total = total + acc[0]
    return total


def _sums(values: Tensor, blocks: Blocks) -> Tensor:
    """`_sum_of` of every block; equal blocks of at most one segment go side by side."""
    if blocks.starts is not None or blocks.size > SEGMENT:
        return torch.stack([_sum_of(values[a:b]) for a, b in blocks.ranges()])
    rows = -(-blocks.size // LANES)
    padded = values.new_zeros(blocks.count, rows * LANES)
    whole = blocks.n // blocks.size
    padded[:whole, : blocks.size] = values[: whole * blocks.size].view(whole, blocks.size)
    if whole < blocks.count:
        padded[whole, : blocks.n - whole * blocks.size] = values[whole * blocks.size :]
    acc = values.new_zeros(blocks.count, LANES)
    for row in range(rows):
        acc = acc + padded[:, row * LANES : (row + 1) * LANES]
    while acc.shape[1] > 1:
        half = acc.shape[1] // 2
        acc = acc[:, :half] + acc[:, half:]
    return acc[:, 0]


def find_scales(p: Tensor, norm: Norm, blocks: Blocks) -> Tensor:
    """The scales of every block of `p` (float32), at most 2^126; NaN where a block is not finite."""
    if norm in (Norm.L2, Norm.MEAN):
        wide = p.double()
        if norm is Norm.L2:
            scale = _sums(wide * wide, blocks).sqrt()
        else:
            sizes = torch.tensor([b - a for a, b in blocks.ranges()], dtype=torch.float64, device=p.device)
            scale = _sums(wide.abs(), blocks) / sizes
        return torch.where(scale.isfinite(), scale.clamp(max=TOP).float(), torch.nan)
    index = blocks.index.to(p.device)
    low = p.new_full((blocks.count,), torch.inf).scatter_reduce(0, index, p, "amin")
    high = p.new_full((blocks.count,), -torch.inf).scatter_reduce(0, index, p, "amax")
    top = torch.maximum(low.abs(), high.abs())
    finite = top.isfinite()
    if norm is Norm.RANGE:
        pair = torch.stack([low, high], 1).clamp(-TOP, TOP) + 0.0  # + 0: one sign of zero
        return torch.where(finite[:, None], pair, torch.nan).view(-1)
    return torch.where(finite, torch.ones_like(top) if norm is Norm.UNIT else top.clamp(max=TOP), torch.nan)
