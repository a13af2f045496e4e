"""hivemind's quantile 8 bits: 256 bins with equally many elements each, decoded to the means of the bins.

Sends the 256 means (float32, 1 KiB) and one byte per element. With r the rank of an element among d, ties broken by
place:

    code = floor(256 r / d),    decoded: the mean of all elements of that code

Up to 256 elements nothing is lost. On Gaussian data the NMSE is 7e-4, most of it from the outermost bins; that is
worse than uniform bins, which in turn do worse where values have many scales.
A contraction with delta = 0.1 / d at least: where a bin holds both signs, those beside it hold larger magnitudes.

>>> Quantile8().delta(256), Quantile8().delta(1000)
(1.0, 0.0001)

Reference: hivemind (learning-at-home), `compression/quantization.py`, Quantile8BitQuantization.

Departs from the code: quantiles are exact, from a stable sort, where hivemind takes quantiles of quantiles of pieces.
Ties are split by place; borders by value could put elements of both signs and any number into one bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import torch

from thinwire.compressors.byte_symbols import ByteSymbols, fold, unfold
from thinwire.compressors.sigma_bins import bin_means

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

BINS = 256


@final
@dataclass(frozen=True)
class Quantile8(ByteSymbols):
    """One byte per element and 256 means."""

    name: ClassVar[str] = "quantile8"

    def delta(self, d: int) -> float | None:
        """Exact up to 256 elements."""
        return 1.0 if d <= BINS else 0.1 / d

    def side_bytes(self, layout: Layout) -> int:
        """The bytes of the means."""
        return 4 * BINS

    def write_symbols(self, x: Tensor, layout: Layout, key: Key, side: Tensor) -> Tensor:
        """Ranks as bins, and their means; NaN for all where an element is not finite."""
        wide = x.detach().double().cpu().numpy()
        n = wide.size
        codes = np.empty(n, dtype=np.uint8)
        codes[np.argsort(wide, kind="stable")] = np.arange(n) * BINS // max(1, n)
        means = bin_means(wide, codes, BINS)
        if not np.isfinite(wide).all():
            means = means.fill_(torch.nan)
        side.view(torch.float32).copy_(means)
        return fold(torch.from_numpy(codes).to(x.device), BINS // 2)

    def add_symbols(self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """Look up and add."""
        out.copy_(out + side.view(torch.float32)[unfold(symbols, BINS // 2)] * weight)
