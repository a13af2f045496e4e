"""Casts to 8 and 4 bits: fp8 (e4m3, e5m2) and fp4 (e2m1), scaled so that a block's largest magnitude fits.

Sends, for each block of B elements, its largest magnitude N (32 bits) and a code of 8 or 4 bits per element: the
number x_i M / N rounded to nearest even, M the largest number of the format (448, 57344, 6).

Contraction: relative error at most u (2^-4, 2^-3, 2^-2) where the format is normal, absolute error at most a N below
it (a = 2^-10/448, 2^-17/57344, 1/24), so 1 - delta = u^2 + c/(1 + c) with c = (B - 1) a^2.

>>> round(MiniFloat("e2m1", block=32).delta(32), 3)
0.886

Reference: Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv 2209.05433; e2m1 is the element of the
OCP MXFP4 format. Departs from MXFP4: the scale is any float32, not a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, final

import torch

from thinwire.compressors.block import check_block, within
from thinwire.core.bitpack import BitPack
from thinwire.core.compressor import Biased
from thinwire.core.config import check_choice
from thinwire.kernels.spec import TOP, packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class _Format(NamedTuple):
    bits: int
    dtype: torch.dtype | None  # None where a table is used
    top: float
    relative: float
    absolute: float


FORMATS = {
    "e4m3": _Format(8, torch.float8_e4m3fn, 448.0, 2.0**-4, 2.0**-10 / 448),
    "e5m2": _Format(8, torch.float8_e5m2, 57344.0, 2.0**-3, 2.0**-17 / 57344),
    "e2m1": _Format(4, None, 6.0, 2.0**-2, 1 / 24),
}


@final
@dataclass(frozen=True)
class MiniFloat(Biased):
    """A float of 8 or 4 bits, scaled by block."""

    name: ClassVar[str] = "float"
    decodes_any: ClassVar[bool] = True
    format: Literal["e4m3", "e5m2", "e2m1"] = "e4m3"
    block: int | None = 128

    def __post_init__(self) -> None:
        check_choice("MiniFloat", "format", self.format, tuple(FORMATS))
        check_block("MiniFloat", self.block)

    def delta(self, d: int) -> float | None:
        """1 - u^2 - c/(1 + c) where that is positive."""
        f = FORMATS[self.format]
        c = (within(self.block, d) - 1) * f.absolute**2
        delta = 1 - f.relative**2 - c / (1 + c)
        return delta if delta > 0 else None

    def nbytes(self, layout: Layout) -> int:
        """The bytes of one scale per block and one code per element."""
        return 4 * self._count(layout) + packed_bytes(layout.numel, FORMATS[self.format].bits)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Scale, round, pack."""
        f, count = FORMATS[self.format], self._count(layout)
        if not count:
            return None
        rows = x.new_zeros(count * self._size(layout), dtype=torch.float32)
        rows[: x.numel()] = x
        rows = rows.view(count, -1)
        top = rows.abs().amax(1)
        top = torch.where(top.isfinite(), top.clamp(max=TOP), torch.nan)
        body[: 4 * count].view(torch.float32).copy_(top)
        divisor = torch.where(top > 0, top, 1.0)[:, None]
        scaled = ((rows / divisor).clamp(-1, 1) * f.top).view(-1)[: x.numel()]
        codes = _to_e2m1(scaled) if f.dtype is None else scaled.nan_to_num(0.0).to(f.dtype).view(torch.uint8)
        body[4 * count :].copy_(BitPack().pack(codes, f.bits))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Unpack, scale, add."""
        f, count = FORMATS[self.format], self._count(layout)
        codes = BitPack().unpack(body[4 * count :], layout.numel, f.bits)
        values = _from_e2m1(codes) if f.dtype is None else codes.view(f.dtype).float()
        top = body[: 4 * count].view(torch.float32)
        step = (top / torch.full_like(top, f.top)).repeat_interleave(self._size(layout))[: layout.numel]
        out.copy_(out + (values * step) * weight)

    def _size(self, layout: Layout) -> int:
        return max(1, within(self.block, layout.numel))

    def _count(self, layout: Layout) -> int:
        return -(-layout.numel // self._size(layout))


def _to_e2m1(x: Tensor) -> Tensor:
    """Codes of the nearest values, ties to the even code: sign in bit 3, index in bits 0 to 2."""
    table = torch.tensor(E2M1, device=x.device)
    middles = (table[1:] + table[:-1]) / 2
    magnitude = x.abs()
    index = torch.bucketize(magnitude, middles)  # a tie goes to the lower index ...
    tie = (index < 7) & (magnitude == middles[index.clamp(max=6)]) & (index % 2 == 1)
    index = index + tie.long()  # ... unless that one is odd
    return (index + 8 * (x < 0)).to(torch.uint8)


def _from_e2m1(codes: Tensor) -> Tensor:
    table = torch.tensor(E2M1, device=codes.device)
    value = table[(codes & 7).long()]
    return torch.where(codes >= 8, -value, value)
