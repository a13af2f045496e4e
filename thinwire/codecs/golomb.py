"""Golomb runs: every symbol that is not zero is sent as the number of zeros before it, a sign and a magnitude.

The number of zeros takes Golomb's code with M from the density (thinwire/codecs/gaps.py), which is within 1% of the
entropy for places drawn at random. The magnitude takes Elias' gamma code, one bit for the smallest. In front of them
stands the number of non-zeros, 32 bits. In size it lies between Elias' sparse form and rANS, and it needs no tables.
A message longer than plain fields is sent as plain fields.

>>> import torch
>>> symbols = (torch.arange(4096) % 64 == 0).to(torch.uint8)  # 64 places of 9 bits each
>>> GolombRuns().pack(symbols, width=1).numel()
77

Reference: Golomb, "Run-length encodings", 1966; `rice=True`: Rice and Plaunt, 1971.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.codecs.gaps import divisor
from thinwire.codecs.native import codes, fit, frame, frame_bound, unframe
from thinwire.core.codec import Codec

if TYPE_CHECKING:
    from torch import Tensor

COUNT = struct.Struct("<I")
GAMMA = 15  # bits of the longest gamma code of a magnitude, 128


@final
@dataclass(frozen=True)
class GolombRuns(Codec):
    """Zero runs by Golomb's code, or with `rice` by that of the nearest power of two."""

    name: ClassVar[str] = "golomb-runs"
    rice: bool = False

    def bound(self, n: int, width: int) -> int:
        """One byte more than plain fields."""
        return frame_bound(n, width)

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols`."""

        def encode(s: Tensor, out: Tensor) -> int:
            n, count = s.numel(), int(s.count_nonzero())
            if count >= 2**32:
                return -1
            m = divisor(count, n, self.rice)
            most = (count * (2 + (m - 1).bit_length() + GAMMA) + (n - count) // m) // 8 + 1
            coded = torch.empty(most, dtype=torch.uint8)
            used = int(codes().runs_encode(s.data_ptr(), n, m, coded.data_ptr()))
            if COUNT.size + used > out.numel():
                return -1
            out[: COUNT.size] = torch.frombuffer(bytearray(COUNT.pack(count)), dtype=torch.uint8)
            out[COUNT.size : COUNT.size + used] = coded[:used]
            return COUNT.size + used

        return frame(fit(self.id, symbols, width), width, encode).to(symbols.device)

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`."""

        def decode(bytes_: Tensor, out: Tensor) -> int:
            if bytes_.numel() < COUNT.size:
                return -1
            count = COUNT.unpack(bytes_[: COUNT.size].numpy().tobytes())[0]
            if count > n:
                return -5
            rest = bytes_[COUNT.size :]
            arguments = (rest.data_ptr(), rest.numel(), out.data_ptr(), n, count, divisor(count, n, self.rice))
            return int(codes().runs_decode(*arguments, 1 << width))

        return unframe(self.id, data, n, width, decode)
