"""1-bit with column means: the sign of each element, and two reconstruction values per column.

Sends, for each column, the mean of its elements >= 0 and the mean of the others (64 bits; an empty side is 0), and
one bit per element. These two values minimise the squared error for the fixed threshold 0.

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

from thinwire.compressors.block import BlockQuantiser
from thinwire.core.compressor import Biased
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class OneBit(Biased, BlockQuantiser):
    """One bit per element and two means per column."""

    name: ClassVar[str] = "one-bit"

    @property
    def quant(self) -> Quant:
        """The side of zero, and the mean of each side."""
        return Quant(Kind.PAIR, Norm.SIDES, levels=1, width=1, stochastic=False)

    def blocks(self, layout: Layout) -> Blocks:
        """One block per column."""
        return Blocks(layout.numel, starts=layout.column_starts)

    def delta(self, d: int) -> float | None:
        """1/d, for a column of d elements."""
        return 1.0 / d
