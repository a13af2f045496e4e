"""BasisCompressor: a few coefficients of the vector in an orthonormal basis, which receivers may also combine.

`read` gives the coefficients of a payload as they were sent, `synthesise` the vector of any coefficients.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.compressor import Compressor, scheme
from thinwire.core.payload import Payload

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

TOP = torch.finfo(torch.float32).max


class BasisCompressor(Compressor):
    """Say how coefficients are written and read, and what vector they stand for."""

    @abstractmethod
    def read(self, body: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Places among `layout.numel` coefficients (int64, each once), their values, and a factor for the values."""

    @abstractmethod
    def synthesise(self, coefficients: Tensor, layout: Layout) -> Tensor:
        """The vector of all coefficients, which may be overwritten."""

    @final
    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Read, synthesise, scale (saturated at the largest float) and add."""
        places, values, unit = self.read(body, layout)
        coefficients = torch.zeros(layout.numel, device=body.device)
        coefficients[places] = values
        x = self.synthesise(coefficients, layout) * unit
        out.copy_(out + torch.where(x.isinf(), x.clamp(-TOP, TOP), x) * weight)

    @final
    def open(self, data: Tensor, layout: Layout, key: Key) -> tuple[Tensor, Tensor]:
        """The places and values of a payload's coefficients, after every check of the payload."""
        payload = Payload(data)
        payload.open(scheme(self, layout), key=key)
        places, values, unit = self.read(payload.aligned().body, layout)
        return places, values * unit
