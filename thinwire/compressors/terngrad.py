"""TernGrad: each element becomes -1, 0 or +1 times one scaler per tensor, unbiased; 2 bits per element.

Sends, for each tensor g, its scaler s (32 bits) and fields of 2 bits:

    g is clipped to [-c sigma, c sigma], sigma the standard deviation of its elements (clip=c; None: not clipped)
    s = max|g| after clipping,    b_i ~ Bernoulli(|g_i| / s),    Q(g)_i = s sgn(g_i) b_i

Ranks that clip to their own s and then agree on the largest (thinwire/exchange/shared_scale.py) may add the integers
themselves. sigma and s are of whole tensors: the engine cuts none of them into chunks (`whole_tensors`).

Bounds: unbiased for the clipped gradient, so for g itself only with clip=None, where
E|Q(g) - g|^2 = s |g|_1 - |g|^2 <= (sqrt(d) - 1)/2 |g|^2.

>>> TernGrad(clip=None).omega(1024)
15.5

Reference: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning",
NeurIPS 2017, arXiv 1705.07878, and the authors' code for c = 2.5.

Departs from the paper: a tensor whose elements are all equal (sigma = 0) is not clipped, since clipping would send
zero. The authors' code uses s = c sigma whenever it clips; we use the smaller of c sigma and max|g|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.block import BlockQuantiser, contraction, omega_max
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class TernGrad(BlockQuantiser):
    """Ternary with one scaler per tensor; `clip` is in standard deviations, and None does not clip."""

    name: ClassVar[str] = "terngrad"
    whole_tensors: ClassVar[bool] = True
    clip: float | None = 2.5

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"TernGrad(clip={self.clip}): write a positive number of standard deviations, or None")

    @property
    def quant(self) -> Quant:
        """One signed level."""
        if self.clip is None:
            return Quant(Kind.SIGNED, Norm.MAX, levels=1, width=2)
        return Quant(Kind.SIGNED, Norm.CLIPPED, levels=1, width=2, clip=self.clip)

    def blocks(self, layout: Layout) -> Blocks:
        """One block per tensor."""
        return Blocks(layout.numel, starts=layout.tensor_starts)

    @property
    def unbiased(self) -> bool:
        """Whether there is no clipping, which adds a bias."""
        return self.clip is None

    def omega(self, d: int) -> float | None:
        """(sqrt(d) - 1)/2 without clipping."""
        return omega_max(1, d) if self.clip is None else None

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))
