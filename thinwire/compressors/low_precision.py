"""The low-precision domain of AsyLPG: multiples of a step, -2^(b-1) step .. (2^(b-1) - 1) step, rounded at random.

Sends b bits an element and the step (32 bits). By default step = max|v| / (2^(b-1) - 1), so that nothing saturates:
unbiased, with E|Q(v) - v|^2 <= d step^2 / 4. With `step` given, values outside the domain saturate at its ends.

>>> LowPrecision(bits=8).unbiased, LowPrecision(bits=8, step=0.01).unbiased
(True, False)

Reference: Yu, Wu, Huang, "Double quantization for communication-efficient distributed optimization", NeurIPS 2019,
arXiv 1805.10111, section 2.

Departs from the paper: with a given step both ends of the domain are sent (64 bits), though they follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.block import ScalingQuantiser, check_bits, equal_blocks, omega_max
from thinwire.kernels.spec import TOP, Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class LowPrecision(ScalingQuantiser):
    """The domain dom(step, bits); `step=None` fits it to the vector."""

    name: ClassVar[str] = "low-precision"
    bits: int = 8
    step: float | None = None

    def __post_init__(self) -> None:
        check_bits("LowPrecision", self.bits, lowest=2)
        if self.step is not None and not self.step > 0:
            raise ValueError(f"LowPrecision(step={self.step}): write a positive step, or None to fit it")

    @property
    def quant(self) -> Quant:
        """Signed integers; for a given step, a grid that saturates at both ends."""
        if self.step is None:
            return Quant(Kind.SIGNED, Norm.MAX, 2 ** (self.bits - 1) - 1, self.bits)
        return Quant(Kind.UNSIGNED, Norm.RANGE, 2**self.bits - 1, self.bits)

    def blocks(self, layout: Layout) -> Blocks:
        """The whole vector."""
        return equal_blocks(layout, None)

    def given_scales(self, x: Tensor, layout: Layout) -> Tensor:
        """The largest magnitude, or the ends of the domain when the step is given; NaN where x is not finite."""
        half = 2 ** (self.bits - 1)
        top = x.abs().amax().float() if x.numel() else torch.zeros(())
        if self.step is None:
            scales = top.clamp(max=TOP).view(1)
        else:
            scales = torch.tensor([-half * self.step, (half - 1) * self.step], device=x.device)
        return torch.where(top.isfinite(), scales, torch.nan)[: self.quant.scales * self.blocks(layout).count]

    @property
    def unbiased(self) -> bool:
        """Saturation adds a bias."""
        return self.step is None

    def omega(self, d: int) -> float | None:
        """As random rounding to 2^(b-1) - 1 levels of the maximum."""
        return omega_max(2 ** (self.bits - 1) - 1, d) if self.step is None else None

    def delta(self, d: int) -> float | None:
        """Not a contraction."""
        return None
