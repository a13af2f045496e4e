"""Identity: the vector as float32, uncompressed. 32 bits per element. Linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.compressor import Compressor

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


@final
@dataclass(frozen=True)
class Identity(Compressor):
    """Loses nothing (16-bit input is widened)."""

    name: ClassVar[str] = "identity"
    linear: ClassVar[bool] = True
    decodes_any: ClassVar[bool] = True

    @property
    def unbiased(self) -> bool:
        """Always: what is decoded is exact."""
        return True

    def omega(self, d: int) -> float | None:
        """0, since there is no error."""
        return 0.0

    def delta(self, d: int) -> float | None:
        """1, since there is no error."""
        return 1.0

    def nbytes(self, layout: Layout) -> int:
        """Four bytes per element."""
        return 4 * layout.numel

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Copy the vector."""
        body.view(torch.float32).copy_(x)
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add the vector."""
        out.copy_(out + body.view(torch.float32) * weight)
