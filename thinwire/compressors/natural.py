"""Natural compression: each element is rounded at random to one of the two powers of two around it, unbiased.

Sends 9 bits per element, a sign and an exponent, and no scale. With m the fraction of the mantissa,

    C(t) = sgn(t) 2^floor(log2|t|)   with probability 1 - m,   sgn(t) 2^ceil(log2|t|)   with probability m

so 2.5 becomes 2 (3/4) or 4 (1/4); powers of two and 0 are kept. In bits: add noise to the mantissa and let it carry
into the exponent.

Bound: omega = 1/8, attained at |t| = 4/3 2^k.

>>> Natural().omega(10)
0.125

Reference: Horvath, Ho, Horvath, Sahu, Canini, Richtarik, "Natural compression for distributed deep learning", 2019,
arXiv 1905.10988, definition 1. (A survey prints the floor in both branches; the second must be the ceiling.)

Departs from the paper: denormals round to 0 or 2^-126, unbiased but outside the bound. Values
above 2^127 stay at 2^127 rather than overflow. NaN and inf decode to NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.block import KernelCompressor, contraction, equal_blocks
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class Natural(KernelCompressor):
    """A sign and a power of two."""

    name: ClassVar[str] = "natural"

    @property
    def quant(self) -> Quant:
        """Eight bits of exponent and one of sign, no scale."""
        return Quant(Kind.NATURAL, Norm.NONE, levels=1, width=9)

    def blocks(self, layout: Layout) -> Blocks:
        """One block, since nothing is shared."""
        return equal_blocks(layout, None)

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """1/8, for any d."""
        return 0.125

    def delta(self, d: int) -> float | None:
        """1 - omega, since omega < 1."""
        return contraction(self.omega(d))
