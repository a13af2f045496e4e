"""Blockwise integers: b-bit signed integers scaled by the largest magnitude of a block; int8, int4, int3.

Sends, for each block x of B elements, its scale (32 bits) and b bits per element, with s = 2^(b-1) - 1:

    step = max|x| / s,    q_i = round(x_i / step) to the nearest integer, or at random to a neighbour

nearest: a contraction, |error_i| <= step/2, delta = 4 s^2 / (4 s^2 + B - 1).
stochastic: unbiased, omega = (sqrt(s^2 + B - 1) - s) / (2s).

>>> IntBlock(bits=8, block=256).delta(256)
0.996...

Reference: the format of ZeRO++'s and hivemind's 8-bit blocks, among others. The bounds are ours: the worst block has
one entry N and B-1 entries just below step/2.

Departs from them: scales are float32, and codes use a symmetric range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from thinwire.compressors.block import (
    BlockQuantiser,
    check_bits,
    check_block,
    contraction,
    equal_blocks,
    omega_max,
    within,
)
from thinwire.core.config import check_choice
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from thinwire.core.types import Layout


@final
@dataclass(frozen=True)
class IntBlock(BlockQuantiser):
    """Integers of `bits` scaled by the largest magnitude of `block` elements."""

    name: ClassVar[str] = "int"
    bits: int = 8
    block: int | None = 256
    rounding: Literal["nearest", "stochastic"] = "nearest"

    def __post_init__(self) -> None:
        check_bits("IntBlock", self.bits, lowest=2)
        check_block("IntBlock", self.block)
        check_choice("IntBlock", "rounding", self.rounding, ("nearest", "stochastic"))

    @property
    def quant(self) -> Quant:
        """Signed integers."""
        return Quant(Kind.SIGNED, Norm.MAX, 2 ** (self.bits - 1) - 1, self.bits, self.unbiased)

    def blocks(self, layout: Layout) -> Blocks:
        """Consecutive blocks of the flat vector."""
        return equal_blocks(layout, self.block)

    @property
    def unbiased(self) -> bool:
        """Whether rounding is random."""
        return self.rounding == "stochastic"

    def omega(self, d: int) -> float | None:
        """The bound for random rounding; None for rounding to nearest."""
        return omega_max(self.quant.levels, within(self.block, d)) if self.unbiased else None

    def delta(self, d: int) -> float | None:
        """The bound for either rounding; for random rounding, only where omega < 1."""
        s, b = self.quant.levels, within(self.block, d)
        return contraction(self.omega(d)) if self.unbiased else 4 * s**2 / (4 * s**2 + b - 1)
