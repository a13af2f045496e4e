"""1-bit with column means: the sign of each element, and two reconstruction values a column.

Sends, for each column, the mean of its elements >= 0 and the mean of the others (64 bits; an empty side is 0), and
one bit an element. These two values minimise the squared error for the fixed threshold 0.

Contraction: delta >= 1/m for a column of m elements (a one-hot column attains it); 2/pi on Gaussian data.
It is biased: use it with error feedback.

>>> OneBit().delta(64)
0.015625

Reference: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs", Interspeech 2014, section 3.

Departs from the paper: a column is the weights into one output unit, `weight[i]` in PyTorch, which is contiguous; a
vector is one column. A column with NaN or inf decodes to NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.core.compressor import Compressor
from thinwire.kernels.spec import TOP, Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

SIGNS = Quant(Kind.SIGN, Norm.NONE, levels=1, width=1, stochastic=False)
TWO_VALUES = Quant(Kind.UNSIGNED, Norm.RANGE, levels=1, width=1, stochastic=False)  # bit 0: low, bit 1: high


@final
@dataclass(frozen=True)
class OneBit(Compressor):
    """One bit an element and two means a column."""

    name: ClassVar[str] = "one-bit"

    @property
    def unbiased(self) -> bool:
        """Deterministic."""
        return False

    def omega(self, d: int) -> float | None:
        """Biased."""
        return None

    def delta(self, d: int) -> float | None:
        """1/d, for a column of d elements."""
        return 1.0 / d

    def nbytes(self, layout: Layout) -> int:
        """Two floats a column, one bit an element."""
        return 8 * (layout.column_starts.numel() - 1) + SIGNS.code_bytes(layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Means, then signs."""
        side = 8 * (layout.column_starts.numel() - 1)
        means = body[:side].view(torch.float32).view(-1, 2)
        column = 0
        for start, size, shape in zip(layout.offsets, layout.sizes, layout.shapes, strict=False):
            if size:
                rows = shape[0] if len(shape) > 1 else 1
                means[column : column + rows] = _side_means(x[start : start + size].view(rows, -1).float())
                column += rows
        one = Blocks(layout.numel, size=max(1, layout.numel))
        kernels.select(x).encode(x, SIGNS, one, key, x.new_empty(0).float(), body[side:])
        return None

    def add(self, body: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """The mean of the side that the bit names."""
        side = 8 * (layout.column_starts.numel() - 1)
        blocks = Blocks(layout.numel, starts=layout.column_starts)
        kernels.select(body).decode_add(body[:side].view(torch.float32), body[side:], TWO_VALUES, blocks, out, weight)


def _side_means(x: Tensor) -> Tensor:
    """(columns, 2): the mean of the negative elements and of the others, for each row of `x`."""
    up = x >= 0
    count = up.sum(1, keepdim=True).double()
    high = torch.where(up, x, 0.0).sum(1, keepdim=True, dtype=torch.float64) / count.clamp(min=1)
    low = torch.where(up, 0.0, x).sum(1, keepdim=True, dtype=torch.float64) / (x.shape[1] - count).clamp(min=1)
    pair = torch.cat([low, high], 1).clamp(-TOP, TOP).float()
    finite = (low + high).isfinite()
    return torch.where(finite, pair, torch.nan)
