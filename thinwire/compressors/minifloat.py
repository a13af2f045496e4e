"""Casts to 8 and 4 bits: fp8 (e4m3, e5m2) and fp4 (e2m1, e3m0), scaled so that a block's largest magnitude fits.

Sends, for each block of B elements, its largest magnitude N (32 bits) and a code of 8 or 4 bits per element: the
number x_i M / N rounded to nearest even, M the largest number of the format (448, 57344, 6, 16).

Contraction: relative error at most u (2^-4, 2^-3, 2^-2, 1/3) where the format is normal, absolute error at most a N
below it (a = 2^-10/448, 2^-17/57344, 1/24, 1/128), so 1 - delta = u^2 + c/(1 + c) with c = (B - 1) a^2.

>>> round(MiniFloat("e2m1", block=32).delta(32), 3)
0.886

Reference: Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv 2209.05433; e2m1 is the element of the
OCP MXFP4 format, e3m0 (0 and seven powers of two) that of Streaming DiLoCo, arXiv 2501.18512. Departs from MXFP4: the
scale is any float32, not a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, final

import torch

from thinwire.compressors.block import check_block, within
from thinwire.core.compressor import Biased, FusedCompressor
from thinwire.core.config import check_choice
from thinwire.core.payload import HEADER, Tail
from thinwire.kernels import minifloat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.core.types import Key, Layout


class _Format(NamedTuple):
    form: minifloat.Format
    relative: float
    absolute: float


FORMATS = {
    "e4m3": _Format(minifloat.E4M3_FORMAT, 2.0**-4, 2.0**-10 / 448),
    "e5m2": _Format(minifloat.E5M2_FORMAT, 2.0**-3, 2.0**-17 / 57344),
    "e2m1": _Format(minifloat.E2M1_FORMAT, 2.0**-2, 1 / 24),
    "e3m0": _Format(minifloat.E3M0_FORMAT, 1 / 3, 1 / 128),
}


@final
@dataclass(frozen=True)
class MiniFloat(Biased, FusedCompressor):
    """A float of 8 or 4 bits, scaled by block."""

    name: ClassVar[str] = "float"
    decodes_any: ClassVar[bool] = True
    format: Literal["e4m3", "e5m2", "e2m1", "e3m0"] = "e4m3"
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
        return 4 * self._count(layout) + minifloat.code_bytes(self._form, layout.numel)

    def write_fused(
        self,
        x: Tensor,
        layout: Layout,
        key: Key,
        body: Tensor,
        *,
        residual: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        checksum: bool = False,
    ) -> Tail | None:
        """Scale, round, pack."""
        scales, codes = self._cut(body, layout)
        partial = minifloat.write(
            x,
            self._form,
            self._size(layout),
            scales,
            codes,
            residual=residual,
            alpha=alpha,
            beta=beta,
            first=HEADER.size // 4 + scales.numel() if checksum else None,
        )
        return None if partial is None else Tail(codes.numel(), partial)

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Unpack, scale, add."""
        self._decode([body], layout, out, weight, fresh=False)

    def put(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Unpack, scale, write."""
        self._decode([body], layout, out, weight, fresh=True)

    def put_all(self, bodies: Sequence[Tensor], layout: Layout, out: Tensor, weight: float) -> None:
        """All bodies in one pass, where there is one."""
        self._decode(bodies, layout, out, weight, fresh=True)

    def _decode(self, bodies: Sequence[Tensor], layout: Layout, out: Tensor, weight: float, *, fresh: bool) -> None:
        scales, codes = zip(*(self._cut(body, layout) for body in bodies), strict=True)
        minifloat.add(scales, codes, self._form, self._size(layout), out, weight, fresh=fresh)

    def _cut(self, body: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Scales and codes."""
        side = 4 * self._count(layout)
        return body[:side].view(torch.float32), body[side:]

    @property
    def _form(self) -> minifloat.Format:
        return FORMATS[self.format].form

    def _size(self, layout: Layout) -> int:
        return max(1, within(self.block, layout.numel))

    def _count(self, layout: Layout) -> int:
        return -(-layout.numel // self._size(layout))
