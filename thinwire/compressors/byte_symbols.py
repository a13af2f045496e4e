"""ByteSymbols: what compressors with one byte per element share; small symbols stand for small magnitudes.

The body is the side information, then the symbols in element order.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from thinwire.core.coded import SymbolCompressor
from thinwire.core.compressor import Biased

if TYPE_CHECKING:
    from thinwire.core.types import Key, Layout


class ByteSymbols(Biased, SymbolCompressor):
    """Say how to write and add symbols; they travel as whole bytes, or through a codec."""

    decodes_any: ClassVar[bool] = True

    @final
    @property
    def width(self) -> int:
        """Eight bits, since symbols travel as whole bytes."""
        return 8

    @final
    def nbytes(self, layout: Layout) -> int:
        """The bytes of the side information, and one byte per element."""
        return self.side_bytes(layout) + layout.numel

    @final
    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the side information, then the symbols."""
        side = self.side_bytes(layout)
        body[side:].copy_(self.write_symbols(x, layout, key, body[:side]))
        return None

    @final
    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Decode and add."""
        side = self.side_bytes(layout)
        self.add_symbols(body[:side], body[side:], layout, out, weight)


def fold(codes: Tensor, middle: int) -> Tensor:
    """Codes 0 .. 255 by distance from `middle`, which becomes 0; its neighbours become 1 and 2, and so on; uint8.

    >>> fold(torch.tensor([128, 127, 129, 0, 255]), 128).tolist()
    [0, 1, 2, 255, 254]
    """
    return _ranks(middle, codes.device)[codes.long()]


def unfold(symbols: Tensor, middle: int) -> Tensor:
    """The inverse of `fold`, int64."""
    return _order(middle, symbols.device)[symbols.long()]


@cache
def _order(middle: int, device: torch.device) -> Tensor:
    """Codes by symbol, kept where they are used: to bring them to a GPU is to wait for it."""
    return torch.tensor(sorted(range(256), key=lambda code: (abs(code - middle), code)), device=device)


@cache
def _ranks(middle: int, device: torch.device) -> Tensor:
    """Symbols by code, made on the host: a GPU that sorts them is not done when another stream reads them."""
    return _order(middle, torch.device("cpu")).argsort().to(torch.uint8).to(device)
