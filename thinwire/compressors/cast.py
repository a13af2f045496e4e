"""Casts to 16 bits: fp16 and bf16. Finite values beyond the range are saturated and counted, never turned into inf.

Sends 16 bits per element and the number of saturated elements (32 bits), which `Cast.saturated` reads back.
Rounding is to nearest even: relative error at most u = 2^-11 (fp16) or 2^-9 (bf16) in the normal range. bf16 has the
range of float32, so delta = 1 - u^2; fp16 flushes magnitudes below 2^-25 to zero and has no such bound.

>>> import torch
>>> from thinwire.core.types import Layout
>>> payload = Cast("fp16").encode(torch.tensor([1e6, -0.5]))
>>> Cast("fp16").decode(payload, Layout.flat(2)), Cast.saturated(payload)
(tensor([ 6.5504e+04, -5.0000e-01]), 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch

from thinwire.core.compressor import Biased
from thinwire.core.config import check_choice

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.payload import Payload
    from thinwire.core.types import Key, Layout

FORMATS = {"fp16": (torch.float16, 2.0**-11), "bf16": (torch.bfloat16, 2.0**-9)}


@final
@dataclass(frozen=True)
class Cast(Biased):
    """Sixteen bits per element."""

    name: ClassVar[str] = "cast"
    decodes_any: ClassVar[bool] = True
    format: Literal["fp16", "bf16"] = "bf16"

    def __post_init__(self) -> None:
        check_choice("Cast", "format", self.format, tuple(FORMATS))

    def delta(self, d: int) -> float | None:
        """1 - u^2 for bf16; None for fp16, which loses small values entirely."""
        return 1 - FORMATS[self.format][1] ** 2 if self.format == "bf16" else None

    def nbytes(self, layout: Layout) -> int:
        """The bytes of a count, and two bytes per element."""
        return 4 + 2 * layout.numel

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Saturate, count, round."""
        dtype = FORMATS[self.format][0]
        top = torch.finfo(dtype).max
        wide = x.float()
        beyond = wide.isfinite() & (wide.abs() > top)
        body[:4].view(torch.int32).copy_(beyond.sum())
        body[4:].view(dtype).copy_(torch.where(beyond, wide.clamp(-top, top), wide))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Widen and add."""
        out.copy_(out + body[4:].view(FORMATS[self.format][0]).float() * weight)

    @staticmethod
    def saturated(payload: Payload) -> int:
        """How many elements of a payload were saturated."""
        return int(payload.body[:4].view(torch.int32).item())
