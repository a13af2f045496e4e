"""Sign: one bit per element, decoded to -1 or +1; only the direction survives.

Sends one bit per element, set where x_i >= 0, and 32 bits that say whether x was finite. sign(0) is +1 on both sides.
Neither unbiased nor a contraction: use it with a majority vote, or `ScaledSign` with error feedback.

>>> import torch
>>> from thinwire.core.types import Layout
>>> Sign().decode(Sign().encode(torch.tensor([0.3, -2.0, 0.0])), Layout.flat(3))
tensor([ 1., -1.,  1.])

Reference: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimisation for non-convex problems",
ICML 2018, arXiv 1802.04434, algorithm 1.

Departs from the paper: sign(0) = +1, so that one bit is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.block import BlockQuantiser, equal_blocks
from thinwire.core.compressor import Biased
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class Sign(Biased, BlockQuantiser):
    """The sign of every element."""

    name: ClassVar[str] = "sign"
    keeps_scale: ClassVar[bool] = False

    @property
    def quant(self) -> Quant:
        """One bit per element; the scale is 1, or NaN."""
        return Quant(Kind.SIGN, Norm.UNIT, levels=1, width=1, stochastic=False)

    def blocks(self, layout: Layout) -> Blocks:
        """One block."""
        return equal_blocks(layout, None)

    def delta(self, d: int) -> float | None:
        """None, since magnitudes are lost."""
        return None
