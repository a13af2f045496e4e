"""TernGrad: each element becomes -1, 0 or +1 times one scaler a tensor, unbiased; 2 bits an element.

Sends, for each tensor g, its scaler s (32 bits) and fields of 2 bits:

    g is clipped to [-c sigma, c sigma], sigma the standard deviation of its elements (clip=c; None: not clipped)
    s = max|g| after clipping,    b_i ~ Bernoulli(|g_i| / s),    Q(g)_i = s sgn(g_i) b_i

Ranks that first agree on the largest s (`given_scales`, then `write_scaled`) may add the integers themselves.

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

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.block import ScalingQuantiser, omega_max
from thinwire.kernels.spec import TOP, Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class TernGrad(ScalingQuantiser):
    """Ternary with one scaler a tensor; `clip` in standard deviations, None for none."""

    name: ClassVar[str] = "terngrad"
    clip: float | None = 2.5

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"TernGrad(clip={self.clip}): write a positive number of standard deviations, or None")

    @property
    def quant(self) -> Quant:
        """One signed level."""
        return Quant(Kind.SIGNED, Norm.MAX, levels=1, width=2)

    def blocks(self, layout: Layout) -> Blocks:
        """One block a tensor."""
        return Blocks(layout.numel, starts=layout.tensor_starts)

    def given_scales(self, x: Tensor, layout: Layout) -> Tensor:
        """The scaler s of every tensor: what ranks that share scalers take the maximum of."""
        edges = layout.tensor_starts.tolist()
        out = torch.empty(len(edges) - 1, device=x.device)
        for i, (a, b) in enumerate(itertools.pairwise(edges)):
            out[i] = self._scaler(x[a:b])
        return out

    def _scaler(self, g: Tensor) -> Tensor:
        low, high = torch.aminmax(g)
        top = torch.maximum(low.abs(), high.abs()).float()
        if self.clip is not None:
            sigma = g.float().std(correction=0)
            if not sigma.isfinite():  # the squares may have overflowed
                sigma = g.double().std(correction=0)
            top = torch.where(sigma > 0, torch.minimum(top, (self.clip * sigma).float()), top)
            top = torch.where(sigma.isnan(), torch.nan, top)
        return torch.where(top.isfinite(), top.clamp(max=TOP), torch.nan)

    @property
    def unbiased(self) -> bool:
        """Clipping adds a bias."""
        return self.clip is None

    def omega(self, d: int) -> float | None:
        """(sqrt(d) - 1)/2 without clipping."""
        return omega_max(1, d) if self.clip is None else None

    def delta(self, d: int) -> float | None:
        """Not a contraction."""
        return None
