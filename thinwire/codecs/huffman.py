"""Huffman: canonical prefix codes of at most 12 bits from the counts of the message.

A symbol takes a whole number of bits, at least one: L bits per symbol with H <= L < H + 1 for entropy H. Where most
symbols are zero that is far from H, so `zero_runs=True` codes 2^k to 2^(k+1)-1 zeros in a row as one token and k
plain bits. Lengths are sent, 4 bits per token; a message longer than plain fields is sent as plain fields.

>>> import torch
>>> symbols = (torch.arange(4096) % 64 == 0).to(torch.uint8)  # entropy 0.116 bits, 60 bytes
>>> Huffman().pack(symbols, width=1).numel(), Huffman(zero_runs=False).pack(symbols, width=1).numel()
(76, 513)

Reference: Huffman, 1952; Larmore and Hirschberg, "A fast algorithm for optimal length-limited Huffman codes", 1990.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.codecs.native import codes, fit, frame, frame_bound, unframe
from thinwire.core.codec import Codec

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Huffman(Codec):
    """Canonical Huffman; `zero_runs` sends zeros as runs."""

    name: ClassVar[str] = "huffman"
    zero_runs: bool = True

    def bound(self, n: int, width: int) -> int:
        """One byte more than plain fields."""
        return frame_bound(n, width)

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols`."""

        def encode(s: Tensor, out: Tensor) -> int:
            return int(codes().huffman_encode(s.data_ptr(), s.numel(), self.zero_runs, out.data_ptr(), out.numel()))

        return frame(fit(self.id, symbols, width), width, encode).to(symbols.device)

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`."""

        def decode(bytes_: Tensor, out: Tensor) -> int:
            arguments = (bytes_.data_ptr(), bytes_.numel(), out.data_ptr(), n, self.zero_runs, 1 << width)
            return int(codes().huffman_decode(*arguments))

        return unframe(self.id, data, n, width, decode)
