"""Natural dithering: random rounding to powers of two of a block's norm; s levels reach as deep as 2^(s-1) steps.

Sends, for each block x of d elements, its norm N (32 bits) and for each element a sign and the index of a level:

    |x_i| / N is rounded, unbiased, to one of its two neighbours among 0, 2^(1-s), 2^(2-s), ..., 1/2, 1

Bound, with t = sqrt(d) 2^(1-s): omega = 1/8 + t min(1, t).
Wire: 32/d + 1 + ceil(log2(s + 1)) bits per element.

>>> NaturalDithering(levels=8, block=1024).omega(1024)
0.1875

Reference: Horvath et al., "Natural compression for distributed deep learning", 2019, arXiv 1905.10988, section 4.

Departs from the paper: at most 24 levels, beyond which the smallest is lost in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from thinwire.compressors.block import BlockQuantiser, check_block, contraction, equal_blocks, within
from thinwire.core.config import check_choice
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class NaturalDithering(BlockQuantiser):
    """`levels` powers of two of the block's norm."""

    name: ClassVar[str] = "natural-dithering"
    levels: int = 8
    norm: Literal["max", "l2"] = "l2"
    block: int | None = 512

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 24:
            raise ValueError(f"NaturalDithering(levels={self.levels}): write 1 to 24 levels")
        check_choice("NaturalDithering", "norm", self.norm, ("max", "l2"))
        check_block("NaturalDithering", self.block)

    @property
    def quant(self) -> Quant:
        """A signed index."""
        norm = Norm.L2 if self.norm == "l2" else Norm.MAX
        return Quant(Kind.DITHER, norm, self.levels, 1 + self.levels.bit_length())

    def blocks(self, layout: Layout) -> Blocks:
        """Consecutive blocks of the flat vector."""
        return equal_blocks(layout, self.block)

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """1/8 + t min(1, t)."""
        t = math.sqrt(within(self.block, d)) * 2.0 ** (1 - self.levels)
        return 0.125 + t * min(1.0, t)

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))
