"""Fields of up to 32 bits, packed: planes of at most 8 bits, low ones first, each as BitPack packs it.

>>> import torch
>>> data = pack_wide(torch.tensor([4095, 0, 17, 2048]), width=12)
>>> data.numel(), unpack_wide(data, 4, width=12).tolist()
(12, [4095, 0, 17, 2048])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.core.bitpack import BitPack
from thinwire.core.errors import PayloadError
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor


def wide_bytes(n: int, width: int) -> int:
    """Bytes of `n` fields of `width` bits."""
    return sum(packed_bytes(n, bits) for _, bits in planes(width))


def pack_wide(fields: Tensor, width: int) -> Tensor:
    """Bytes for `fields`, integers in 0 .. 2^width - 1."""
    parts = [
        BitPack().pack(((fields >> shift) & ((1 << bits) - 1)).to(torch.uint8), bits) for shift, bits in planes(width)
    ]
    return torch.cat([torch.empty(0, dtype=torch.uint8, device=fields.device), *parts])


def unpack_wide(data: Tensor, n: int, width: int) -> Tensor:
    """The `n` fields of `data`, int64."""
    if data.numel() != wide_bytes(n, width):
        raise PayloadError(f"{n} fields of {width} bits take {wide_bytes(n, width)} bytes; got {data.numel()}")
    fields = torch.zeros(n, dtype=torch.int64, device=data.device)
    sizes = [packed_bytes(n, bits) for _, bits in planes(width)]
    for piece, (shift, bits) in zip(data.split(sizes) if sizes else [], planes(width), strict=True):
        fields += BitPack().unpack(piece.contiguous(), n, bits).to(torch.int64) << shift
    return fields


def planes(width: int) -> list[tuple[int, int]]:
    """(shift, bits) of the parts, of at most 8 bits, of a wide field.

    >>> planes(20)
    [(0, 8), (8, 8), (16, 4)]
    """
    return [(shift, min(8, width - shift)) for shift in range(0, width, 8)]
