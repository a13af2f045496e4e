"""QSGD: stochastic rounding to s levels of a block's norm, unbiased, with a tunable number of bits.

Sends, for each block v of B elements, its scale N = |v|_2 or max|v_i| (32 bits) and for each element a field:

    Q(v)_i = N sgn(v_i) zeta_i / s,    zeta_i = floor(s |v_i| / N) + Bernoulli(frac(s |v_i| / N))

`levels` is s, the number of non-zero magnitudes; a field has ceil(log2(2s + 1)) bits. `bits=b` instead means a sign
and b-1 magnitude bits, s = 2^(b-1) - 1 (papers differ: QSGD's own "4-bit" counts s = 16 and a sign).
`bits=1` leaves two points, -N and +N, drawn with mean v_i.
`symmetric=False` puts 2^b equally spaced points on [min, max] of the block, with two scales.

Bounds: E Q(v) = v. |.|_2: E|Q(v) - v|^2 <= min(B/s^2, sqrt(B)/s) |v|^2. max: (sqrt(s^2 + B - 1) - s) / (2s).
[min, max] with L = 2^b - 1 steps: (B - 2) / (2 L^2). bits=1: B - 1.
Wire: 32/B + b bits per element.

>>> import torch
>>> from thinwire.core.types import Key, Layout
>>> q = Qsgd(levels=4, norm="l2")
>>> q.width, q.omega(512)
(4, 5.65...)
>>> q.decode(q.encode(torch.tensor([3.0, -4.0]), key=Key(seed=1)), Layout.flat(2))
tensor([ 3.7500, -3.7500])

Reference: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
encoding", NeurIPS 2017, arXiv 1610.02132, section 3.1 and 3.3.

Departs from the paper: the default scale is max, which their experiments use, and `bits` counts the sign. The max
and [min, max] bounds are ours.
"""

from __future__ import annotations

import math
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
class Qsgd(BlockQuantiser):
    """Stochastic rounding to `levels` steps of the block's norm, or to fields of `bits`."""

    name: ClassVar[str] = "qsgd"
    bits: int | None = None
    levels: int | None = None
    norm: Literal["max", "l2"] = "max"
    symmetric: bool = True
    block: int | None = 512

    def __post_init__(self) -> None:
        if (self.bits is None) == (self.levels is None):
            raise ValueError(f"Qsgd takes one of bits and levels; got {self}: write Qsgd(bits=4) or Qsgd(levels=4)")
        if self.bits is not None:
            check_bits("Qsgd", self.bits)
        if self.levels is not None and not 1 <= self.levels <= 127:
            raise ValueError(f"Qsgd(levels={self.levels}): fields of up to 8 bits hold 1 to 127 levels")
        if self.levels is not None and not self.symmetric:
            raise ValueError(
                "Qsgd(symmetric=False) uses every code of its field: write Qsgd(bits=..., symmetric=False)"
            )
        if self.norm != "max" and not self.symmetric:
            raise ValueError("Qsgd(symmetric=False) scales by [min, max]: leave norm out")
        check_choice("Qsgd", "norm", self.norm, ("max", "l2"))
        check_block("Qsgd", self.block)

    @property
    def quant(self) -> Quant:
        """Signed magnitudes; a grid of two or more points for bits=1 and for [min, max]."""
        norm = Norm.L2 if self.norm == "l2" else Norm.MAX
        if self.bits is not None and (self.bits == 1 or not self.symmetric):
            return Quant(Kind.UNSIGNED, norm if self.symmetric else Norm.RANGE, 2**self.bits - 1, self.bits)
        levels = self.levels or 2 ** ((self.bits or 0) - 1) - 1
        return Quant(Kind.SIGNED, norm, levels, 1 + levels.bit_length())

    def blocks(self, layout: Layout) -> Blocks:
        """Consecutive blocks of the flat vector."""
        return equal_blocks(layout, self.block)

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """The bound given in the module's docstring."""
        d, s = within(self.block, d), self.quant.levels
        if self.quant.kind is Kind.UNSIGNED:
            return d - 1.0 if self.symmetric else max(0, d - 2) / (2 * s**2)
        return min(d / s**2, math.sqrt(d) / s) if self.norm == "l2" else omega_max(s, d)

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))
