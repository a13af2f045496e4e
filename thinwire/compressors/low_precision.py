"""The low-precision domain of AsyLPG: multiples of a step, -2^(b-1) step .. (2^(b-1) - 1) step, rounded at random.

Sends b bits per element and the step (32 bits). By default step = max|v| / (2^(b-1) - 1), so that nothing saturates:
unbiased, with E|Q(v) - v|^2 <= d step^2 / 4. With `step` given, values outside the domain saturate at its ends.

>>> LowPrecision(bits=8).unbiased, LowPrecision(bits=8, step=0.01).unbiased
(True, False)

Reference: Yu, Wu, Huang, "Double quantization for communication-efficient distributed optimization", NeurIPS 2019,
arXiv 1805.10111, section 2.

Departs from the paper: with a given step the 32 bits say only whether v was finite, since both sides know the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.block import BlockQuantiser, check_bits, contraction, equal_blocks, omega_max
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class LowPrecision(BlockQuantiser):
    """The domain dom(step, bits); `step=None` fits it to the vector."""

    name: ClassVar[str] = "low-precision"
    bits: int = 8
    step: float | None = None

    def __post_init__(self) -> None:
        check_bits("LowPrecision", self.bits, lowest=2)
        if self.step is not None and not 0 < self.step < 2.0**100:
            raise ValueError(f"LowPrecision(step={self.step}): write a positive step, or None to fit it")

    @property
    def quant(self) -> Quant:
        """Signed integers; for a given step, a grid that saturates at both ends."""
        half = 2 ** (self.bits - 1)
        if self.step is None:
            return Quant(Kind.SIGNED, Norm.MAX, half - 1, self.bits)
        ends = {"lo": -half * self.step, "hi": (half - 1) * self.step}
        return Quant(Kind.UNSIGNED, Norm.UNIT, 2 * half - 1, self.bits, **ends)

    def blocks(self, layout: Layout) -> Blocks:
        """The whole vector."""
        return equal_blocks(layout, None)

    @property
    def unbiased(self) -> bool:
        """Whether nothing saturates; saturation adds a bias."""
        return self.step is None

    def omega(self, d: int) -> float | None:
        """The bound of random rounding to 2^(b-1) - 1 levels of the maximum."""
        return omega_max(2 ** (self.bits - 1) - 1, d) if self.step is None else None

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))
