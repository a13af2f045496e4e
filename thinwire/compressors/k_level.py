"""Uniform k-level quantisation: random rounding to k points between the smallest and the largest element, unbiased.

Sends, for each block x of d elements, min and max (64 bits) and fields of ceil(log2 k) bits:

    x_i is rounded to one of its two neighbours among min + r (max - min)/(k - 1), r = 0 .. k-1

Bound: omega = (d - 2) / (2 (k-1)^2); the paper states d / (2 (k-1)^2) for the mean of one vector.

>>> KLevel(k=2).omega(1024)
511.0

Reference: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited communication", ICML 2017,
arXiv 1611.00429, section 2.

Departs from the paper: `block=None` is the paper's; smaller blocks are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.block import BlockQuantiser, check_block, contraction, equal_blocks, within
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class KLevel(BlockQuantiser):
    """`k` equally spaced points on [min, max]."""

    name: ClassVar[str] = "k-level"
    k: int = 16
    block: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or not 2 <= self.k <= 256:
            raise ValueError(f"KLevel(k={self.k}): write 2 to 256 levels")
        check_block("KLevel", self.block)

    @property
    def quant(self) -> Quant:
        """A grid on the block's range."""
        return Quant(Kind.UNSIGNED, Norm.RANGE, self.k - 1, (self.k - 1).bit_length())

    def blocks(self, layout: Layout) -> Blocks:
        """The whole vector, or consecutive blocks of it."""
        return equal_blocks(layout, self.block)

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """(d - 2) / (2 (k-1)^2)."""
        return max(0, within(self.block, d) - 2) / (2 * (self.k - 1) ** 2)

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))
