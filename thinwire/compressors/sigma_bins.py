"""Bins over six standard deviations, each decoded to the mean of its elements: the quantiser of hivemind and templar.

    z = (x - mean) / (6 sigma / b) + b/2,    bin = z rounded to the nearest of 0 .. b-1

Sums run in float64 in a fixed order: over 64 lanes, row by row, then by halving; the means of the bins element by
element. So the same vector gives the same bits on every machine.

Every bin but the middle one lies on one side of the mean, so that |C(x) - x|^2 <= (1 - (1 - (3/b)^2) / d) |x|^2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

LANES = 64
SIGMAS = 6


def ordered_sum(values: NDArray[np.float64]) -> float:
    """The sum in the order described above.

    >>> ordered_sum(np.arange(100.0))
    4950.0
    """
    rows = np.zeros((-(-values.size // LANES), LANES))
    rows.reshape(-1)[: values.size] = values
    lanes = np.zeros(LANES)
    np.add.reduce(rows, axis=0, out=lanes)  # row after row: the lanes are the inner loop
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(lanes[0])


def sigma_bins(x: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """The bin of every element (uint8), and the mean of every bin (float32; NaN if an element is not finite).

    >>> sigma_bins(torch.tensor([-1.0, 1.0, 1.0, 3.0]), bins=4)
    (tensor([1, 2, 2, 3], dtype=torch.uint8), tensor([ 0., -1.,  1.,  3.]))
    """
    wide = x.detach().double().cpu().numpy()
    n = max(1, wide.size)
    with np.errstate(invalid="ignore"):  # inf - inf
        centred = wide - ordered_sum(wide) / n
        sigma = math.sqrt(ordered_sum(centred * centred) / n)
    if not math.isfinite(sigma):
        return torch.zeros(x.shape, dtype=torch.uint8, device=x.device), x.new_full((bins,), math.nan)
    step = SIGMAS * sigma / bins
    z = np.rint(centred / step) + bins // 2 if step > 0 else np.full(wide.shape, bins // 2)
    codes = z.clip(0, bins - 1).astype(np.uint8)
    return torch.from_numpy(codes).to(x.device), bin_means(wide, codes, bins).to(x.device)


def bin_means(wide: NDArray[np.float64], codes: NDArray[np.uint8], bins: int) -> Tensor:
    """The mean of the elements of every bin, float32; 0 for an empty one."""
    sums = np.bincount(codes, weights=wide, minlength=bins)  # one addition per element, in order
    return torch.from_numpy((sums / np.bincount(codes, minlength=bins).clip(1)).astype(np.float32))


def bins_delta(bins: int, d: int) -> float:
    """The contraction that holds for every vector of `d` elements, minus a margin for rounding."""
    return 0.999 * (1 - (SIGMAS / 2 / bins) ** 2) / max(1, d)
