"""Refining: the nearest point of a uniform grid whose range shrinks by a factor in every step.

    l_k = width kappa^k,    Delta_k = l_k / 2^bits
    C(x)_i = Delta_k q_i,    q_i = the integer nearest to x_i / Delta_k, within +-(2^(bits-1) - 1)

where k is the step of the key. Both ends know k, so that no scale travels: sends exactly `bits` bits per element.
Around it belongs a memory that keeps the last value at both ends (`Difference()`): what is sent is then

    Q_k = Q_k-1 + C(x - Q_k-1),    |Q_k,i - x_i| <= l_k / 2^(bits+1)   while |x_i - Q_k-1,i| <= (l_k - Delta_k) / 2

and its error falls like kappa^k with the same number of bits. Values outside the range saturate at its ends. NaN or
inf decodes to NaN, for which the lowest code is set aside.

>>> Refining(bits=4, width=8.0, kappa=0.5).step(0), Refining(bits=4, width=8.0, kappa=0.5).step(3)
(0.5, 0.0625)

Reference: Pu, Zeilinger, Jones, "Quantization design for distributed optimization", IEEE Transactions on Automatic
Control 62(5), 2017, arXiv 1504.02317, section III.

Departs from the paper: one code of 2^bits is NaN. Delta_k does not fall below 2^-120.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.block import check_bits
from thinwire.core.bitpack import BitPack
from thinwire.core.compressor import Biased
from thinwire.core.errors import PayloadError
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

SMALLEST = 2.0**-120


@final
@dataclass(frozen=True)
class Refining(Biased):
    """2^`bits` - 1 points on an interval of length `width` `kappa`^k around zero."""

    name: ClassVar[str] = "refining"
    bits: int = 8
    width: float = 16.0
    kappa: float = 0.99

    def __post_init__(self) -> None:
        check_bits("Refining", self.bits, lowest=2)
        if not 0 < self.width < 2.0**100:
            raise ValueError(f"Refining(width={self.width}): write the length of the first interval, such as 16.0")
        if not 0 < self.kappa <= 1:
            raise ValueError(f"Refining(kappa={self.kappa}): write 0 < kappa <= 1, such as kappa=0.99")

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1)) - 1

    def step(self, k: int) -> float:
        """Delta_k."""
        return max(self.width * self.kappa**k / (1 << self.bits), SMALLEST)

    def delta(self, d: int) -> float | None:
        """None: values outside the range are lost, and small ones are rounded to zero."""
        return None

    def nbytes(self, layout: Layout) -> int:
        """The packed fields."""
        return packed_bytes(layout.numel, self.bits)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Round and pack; the code 0 is NaN."""
        wide = x.float()
        q = (wide.double() / self.step(key.step)).round().clamp(-self.top, self.top) + (self.top + 1)
        codes = torch.where(wide.isfinite(), q, 0.0).to(torch.uint8)
        body.copy_(BitPack().pack(codes, self.bits))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Unpack and add."""
        if body.numel() != self.nbytes(layout):
            raise PayloadError(f"{self.id}: {self.nbytes(layout)} bytes of fields; {body.numel()} arrived")
        codes = BitPack().unpack(body, layout.numel, self.bits)
        values = (codes.double() - (self.top + 1)) * self.step(key.step)
        out.copy_(out + torch.where(codes == 0, torch.nan, values).float() * weight)
