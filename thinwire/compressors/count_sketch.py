"""Count sketch: r rows of c counters, in which heavy elements can be found again. Linear.

Sends r c counters, 32 bits each, whatever d is. In row j element i has a counter h_j(i) and a sign s_j(i), which all
ranks draw alike from the seed, the step and the bucket:

    T_j[h] = sum over h_j(i) = h of s_j(i) x_i        C(x)_i = median over j of s_j(i) T_j[h_j(i)]

One row's estimate is off by about |x| / sqrt(c); the median over rows is rarely off by more than a few times that.
Light elements drown in that noise: exchange the heavy ones exactly (thinwire.exchange.sketched). Neither unbiased nor
a contraction. A vector that holds NaN or inf decodes to NaN everywhere.

Reference: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002. Ivkin, Rothchild,
Ullah, Braverman, Stoica, Arora, "Communication-efficient distributed SGD with sketching", NeurIPS 2019,
arXiv 1903.04488.

Departs from the paper: places and signs are Philox words, which are independent, where 2-wise and 4-wise independent
hashes would do; they change with the step. Counters are summed in double precision and saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.core.compressor import Biased
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

TOP = torch.finfo(torch.float32).max


@final
@dataclass(frozen=True)
class CountSketch(Biased):
    """`rows` (odd) of `cols` counters."""

    name: ClassVar[str] = "count-sketch"
    linear: ClassVar[bool] = True
    decodes_any: ClassVar[bool] = True
    rows: int = 5
    cols: int = 4096

    def __post_init__(self) -> None:
        if self.rows < 1 or self.rows % 2 == 0 or not 1 <= self.cols < 1 << 31:
            raise ValueError(
                f"CountSketch(rows={self.rows}, cols={self.cols}): write an odd number of rows and cols >= 1"
            )

    def delta(self, d: int) -> float | None:
        """None, since light elements decode to other elements' noise."""
        return None

    def nbytes(self, layout: Layout) -> int:
        """The bytes of the counters."""
        return 4 * self.rows * self.cols if layout.numel else 0

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Add every element to its counters."""
        if not x.numel():
            return None
        table = body.view(torch.float32).view(self.rows, self.cols)
        wide = x.double()
        for row in range(self.rows):
            place, sign = self._hash(key, row, x)
            sums = torch.zeros(self.cols, dtype=torch.float64, device=x.device).index_add_(0, place, wide * sign)
            table[row].copy_(sums.clamp(-TOP, TOP))
        table.copy_(selection.spoilt(x, table))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add the estimate of every element."""
        table = body.view(torch.float32).view(self.rows, self.cols)
        hashes = (self._hash(key, row, out) for row in range(self.rows))
        estimates = torch.stack([table[row][place] * sign for row, (place, sign) in enumerate(hashes)])
        out.copy_(out + selection.spoilt(table, estimates.median(0).values) * weight)

    def _hash(self, key: Key, row: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Counter (int64) and sign (+-1, float32) of every element; the rank's field of the key holds the row."""
        words = kernels.select(like).noise(key.fold(rank=row), like.numel()).to(like.device)
        return (words >> 1) * self.cols >> 31, 1 - 2 * (words & 1).float()
