"""LAQ's grid: the nearest of 2^b equally spaced points on [-R, R], R = max|v|, deterministic.

LAQ quantises the innovation v = g - q against the last upload q. Sends R (32 bits) and b bits per element:

    tau = 1/(2^b - 1),    Q(v) = -R + 2 tau R floor((v + R + tau R) / (2 tau R)),    |Q(v)_i - v_i| <= tau R

Zero is not a point of the grid. A contraction where (d - 1) tau^2 < 1, with delta = 1 - (d - 1) tau^2.

>>> LaqGrid(bits=4).delta(64)
0.72

Reference: Sun, Chen, Giannakis, Yang, "Communication-efficient distributed learning via lazily aggregated quantized
gradients", NeurIPS 2019, arXiv 1909.07588, section 2.

Departs from the paper: nothing. The lazy rule itself is a memory, not part of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.block import BlockQuantiser, check_bits, check_block, equal_blocks, within
from thinwire.core.compressor import Biased
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class LaqGrid(Biased, BlockQuantiser):
    """2^`bits` points on [-R, R]."""

    name: ClassVar[str] = "laq-grid"
    bits: int = 4
    block: int | None = None

    def __post_init__(self) -> None:
        check_bits("LaqGrid", self.bits)
        check_block("LaqGrid", self.block)

    @property
    def quant(self) -> Quant:
        """A symmetric grid, to the nearest point."""
        return Quant(Kind.UNSIGNED, Norm.MAX, 2**self.bits - 1, self.bits, stochastic=False)

    def blocks(self, layout: Layout) -> Blocks:
        """The whole vector, or consecutive blocks of it."""
        return equal_blocks(layout, self.block)

    def delta(self, d: int) -> float | None:
        """1 - (d - 1) tau^2 where that is positive."""
        delta = 1 - (within(self.block, d) - 1) / (2**self.bits - 1) ** 2
        return delta if delta > 0 else None
