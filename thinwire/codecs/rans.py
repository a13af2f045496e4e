"""rANS: symbols at their entropy, from one histogram per message. It reaches the bits of the papers' formulas.

n symbols with counts d_k take sum_k d_k log2(n / d_k) / 8 bytes, and at most 1% and 64 bytes more for alphabets of
a few symbols (a table of 256 frequencies takes about 300 bytes). Frequencies are multiples of 2^-12; symbols rarer
than half of that follow an escape, in a message of their own. A chunk of 2^19 to 2^21 symbols has 4 states, or 32
where they are less than 0.7% of it. Chunks are coded side by side on all cores; kernels/cpu/rans_message.h describes
the bytes. A message longer than plain fields is sent as plain fields. Damage is noticed when the states do not end as
they began.

>>> import torch
>>> symbols = (torch.arange(4096) % 64 == 0).to(torch.uint8)  # entropy 0.116 bits, 60 bytes
>>> data = Rans().pack(symbols, width=1)
>>> data.numel(), bool((Rans().unpack(data, 4096, width=1) == symbols).all())
(78, True)

Reference: Duda, "Asymmetric numeral systems", 2013, arXiv 1311.2540; Giesen, "Interleaved entropy coders", 2014,
arXiv 1402.3392, for states that share a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.codecs.native import codes, frame_bound, frame_into, unframe, unframe_into, whole
from thinwire.core.codec import Codec
from thinwire.kernels.dispatch import select

if TYPE_CHECKING:
    from torch import Tensor


BAD_SYMBOL = -4  # see native.FAULTS
AVX512 = 2  # see Kernels.vectors


@final
@dataclass(frozen=True)
class Rans(Codec):
    """Range asymmetric numeral systems with a static histogram."""

    name: ClassVar[str] = "rans"

    def bound(self, n: int, width: int) -> int:
        """One byte more than plain fields."""
        return frame_bound(n, width)

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols`."""
        out = torch.empty(self.bound(symbols.numel(), width), dtype=torch.uint8)
        return out[: self._write(symbols, width, out)].to(symbols.device)

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`."""
        return unframe(self.id, data, n, width, lambda bytes_, out: decode(bytes_, out, width))

    def write(self, symbols: Tensor, width: int, out: Tensor) -> int:
        """Pack into `out`, without a copy on the CPU."""
        return self._write(symbols, width, out) if out.is_cpu else super().write(symbols, width, out)

    def read(self, data: Tensor, width: int, out: Tensor) -> None:
        """Unpack into `out`, without a copy on the CPU."""
        if out.is_cpu:
            unframe_into(out, self.id, data, width, lambda bytes_, to: decode(bytes_, to, width))
        else:
            super().read(data, width, out)

    def _write(self, symbols: Tensor, width: int, out: Tensor) -> int:
        return frame_into(
            out, whole(self.id, symbols, width), width, lambda s, to: self._checked(encode(s, to, width), s, width)
        )

    def _checked(self, used: int, symbols: Tensor, width: int) -> int:
        """Raise the error for a symbol that does not fit, which the histogram has seen."""
        if used == BAD_SYMBOL:
            raise ValueError(f"{self.id}: symbol {int(symbols.max())} does not fit {width} bits")
        return used


def encode(symbols: Tensor, out: Tensor, width: int = 8) -> int:
    """The bytes written to `out`, negative if it is too short; the same by plain code and by AVX-512."""
    arguments = (symbols.data_ptr(), symbols.numel(), out.data_ptr(), out.numel(), 1 << width)
    return int(codes().rans_encode(*arguments, torch.get_num_threads(), select(symbols).vectors >= AVX512))


def decode(data: Tensor, out: Tensor, width: int) -> int:
    """Fill `out`; returns a fault or 0."""
    arguments = (data.data_ptr(), data.numel(), out.data_ptr(), out.numel(), 1 << width, torch.get_num_threads())
    return int(codes().rans_decode(*arguments, select(data).vectors >= AVX512))
