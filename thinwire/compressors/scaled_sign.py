"""Scaled sign: the sign of each element times the mean magnitude of its tensor; the compressor of EF-signSGD.

Sends, for each tensor p of d elements, |p|_1 / d (32 bits) and one bit per element:

    C(p) = (|p|_1 / d) sign(p)

Contraction with delta = |p|_1^2 / (d |p|_2^2) >= 1/d, exactly; 2/pi on Gaussian data. Biased: use error feedback.

>>> ScaledSign().delta(64)
0.015625

Reference: Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes",
ICML 2019, arXiv 1901.09847, algorithm 2.

Departs from the paper: sign(0) = +1. `block` shares a scale among that many elements instead of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.block import BlockQuantiser, check_block, equal_blocks, within
from thinwire.core.compressor import Biased
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class ScaledSign(Biased, BlockQuantiser):
    """Sign times mean magnitude, of a tensor or of `block` elements."""

    name: ClassVar[str] = "scaled-sign"
    block: int | None = None

    def __post_init__(self) -> None:
        check_block("ScaledSign", self.block)

    @property
    def quant(self) -> Quant:
        """One bit and the mean magnitude."""
        return Quant(Kind.SIGN, Norm.MEAN, levels=1, width=1, stochastic=False)

    def blocks(self, layout: Layout) -> Blocks:
        """One block per tensor, or equal blocks."""
        if self.block is None:
            return Blocks(layout.numel, starts=layout.tensor_starts)
        return equal_blocks(layout, self.block)

    def delta(self, d: int) -> float | None:
        """1/d, for the worst vector."""
        return 1.0 / within(self.block, d)
