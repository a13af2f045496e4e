"""Bit packing: every symbol in a field of equal width.

n symbols of b bits take b * (64 * floor(n/512) + ceil((n mod 512)/8)) bytes: b bits each, and at most 7 fields of
padding. Lanes are planar (thinwire/kernels/spec.py), so that vectors of bytes are packed without shuffles.
The quantisers' kernels pack in the pass that rounds; this codec is the same format on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.core.codec import Codec
from thinwire.core.errors import PayloadError
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class BitPack(Codec):
    """Fields of equal width.

    >>> import torch
    >>> BitPack().pack(torch.tensor([1, 0, 1, 1, 0, 0, 0, 1], dtype=torch.uint8), width=1)
    tensor([141], dtype=torch.uint8)
    """

    name: ClassVar[str] = "bitpack"

    def bound(self, n: int, width: int) -> int:
        """Exactly the bytes that `pack` makes."""
        return packed_bytes(n, width)

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols`."""
        _check_width(width)
        out = torch.empty(packed_bytes(symbols.numel(), width), dtype=torch.uint8, device=symbols.device)
        kernels.select(symbols).pack(symbols, width, out)
        return out

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`."""
        _check_width(width)
        if data.numel() != packed_bytes(n, width):
            raise PayloadError(f"{n} fields of {width} bits take {packed_bytes(n, width)} bytes; got {data.numel()}")
        return kernels.select(data).unpack(data, n, width)


def _check_width(width: int) -> None:
    if not 1 <= width <= 8:
        raise ValueError(f"BitPack packs fields of 1 to 8 bits; got width={width}")
