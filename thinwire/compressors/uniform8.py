"""hivemind's uniform 8 bits: 256 bins over six standard deviations about the mean, decoded to the means of the bins.

Sends the 256 means (float32, 1 KiB) and one byte per element. With step h = 6 sigma / 256:

    code = clamp(round((x - mean) / h) + 128, 0, 255),    decoded: the mean of all elements of that code

Elements beyond 3 sigma share the outermost bins. NMSE on Gaussian data: 2.6e-4.
A contraction with delta = 0.998 / d at least.

>>> Uniform8().delta(1000) > 0.998e-3
True

Reference: hivemind (learning-at-home), `compression/quantization.py`, Uniform8BitQuantization.

Departs from the code: sigma divides by d, not d - 1, so that one element is coded too. Sums run in float64 in a fixed
order. Symbols are folded about the middle, so that small ones stand for values near the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.byte_symbols import ByteSymbols, fold, unfold
from thinwire.compressors.sigma_bins import bins_delta, sigma_bins

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

BINS = 256


@final
@dataclass(frozen=True)
class Uniform8(ByteSymbols):
    """One byte per element and 256 means."""

    name: ClassVar[str] = "uniform8"

    def delta(self, d: int) -> float | None:
        """The bound of 256 bins: every bin but the middle one keeps at least 1/d of its energy."""
        return bins_delta(BINS, d)

    def side_bytes(self, layout: Layout) -> int:
        """The bytes of the means."""
        return 4 * BINS

    def write_symbols(self, x: Tensor, layout: Layout, key: Key, side: Tensor) -> Tensor:
        """Find the bins and their means."""
        codes, means = sigma_bins(x.float(), BINS)
        side.view(torch.float32).copy_(means)
        return fold(codes, BINS // 2)

    def add_symbols(self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """Look up and add."""
        out.copy_(out + side.view(torch.float32)[unfold(symbols, BINS // 2)] * weight)
