"""rANS: symbols at their entropy, from one histogram per message. It reaches the bits of the papers' formulas.

n symbols with counts d_k take sum_k d_k log2(n / d_k) / 8 bytes, and at most 1% and 64 bytes more for alphabets of
a few symbols (a table of 256 frequencies takes about 300 bytes), where a CPU writes them. Frequencies are multiples
of 2^-12; symbols rarer than half of that follow an escape, in a message of their own. A chunk of up to 2^21 symbols,
2^19 or more where there are several, has 4 states, or 32 where they are less than 0.7% of it.

A GPU codes each chunk by a warp. It makes more of them, of 5 KiB, and gives rare symbols frequencies of their own
where that costs less than half a percent: 2% in all. It codes as many narrow symbols as a byte holds as one, where
they are more than 2^18 bytes. Any device reads what any other wrote; kernels/cpu/rans_message.h describes the bytes.
A message longer than plain fields is sent as plain fields. Damage is noticed when the states do not end as they
began.

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

from thinwire.codecs.native import JOINED, check, codes, frame_bound, frame_into, local, unframe_into, whole
from thinwire.core.codec import Codec
from thinwire.kernels.dispatch import select
from thinwire.kernels.spec import together
from thinwire.kernels.table import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


BAD_SYMBOL = -4  # see native.FAULTS
AVX512 = 2  # see Kernels.vectors
LIKE_A_GPU = 1  # see rans_message.h


@final
@dataclass(frozen=True)
class Rans(Codec):
    """Range asymmetric numeral systems with a static histogram."""

    name: ClassVar[str] = "rans"
    defers: ClassVar[bool] = True

    def bound(self, n: int, width: int) -> int:
        """One byte more than plain fields."""
        return frame_bound(n, width)

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols`."""
        out = torch.empty(self.bound(symbols.numel(), width), dtype=torch.uint8, device=symbols.device)
        return out[: self.write(symbols, width, out)]

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`."""
        out = torch.empty(n, dtype=torch.uint8, device=data.device)
        self.read(data, width, out)
        return out

    def write(self, symbols: Tensor, width: int, out: Tensor) -> int:
        """Pack into `out`; on a GPU this waits for the size, as `begin_write` does not."""
        used = int(self.begin_write(symbols, width, out))
        if used == BAD_SYMBOL:
            raise bad_symbol(symbols, width)
        return used

    def read(self, data: Tensor, width: int, out: Tensor) -> None:
        """Unpack into `out`; on a GPU this waits for the fault, as `begin_read` does not."""
        if out.numel() and data.numel():
            check(self.id, int(self.begin_read(data, width, out)))
        else:
            check(self.id, 0 if out.numel() == data.numel() else -1 if out.numel() else -2)

    def begin_write(self, symbols: Tensor, width: int, out: Tensor) -> Tensor | int:
        """Pack; the bytes used, which a GPU keeps in a tensor of its own, or `BAD_SYMBOL`."""
        return self.begin_write_all([symbols], width, [out])[0]

    def begin_read(self, data: Tensor, width: int, out: Tensor) -> Tensor | int:
        """Unpack one byte or more; a fault (see `native.FAULTS`), which a GPU keeps in a tensor of its own, or 0."""
        return self.begin_read_all([data], width, [out])[0]

    def begin_write_all(self, symbols: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[Tensor | int]:
        """The same for several vectors."""
        some = [place for place, one in enumerate(symbols) if one.numel()]
        used: list[Tensor | int] = [0] * len(symbols)
        if some:
            given = [whole(self.id, symbols[place], width) for place in some]
            made = find("rans.encode", given[0], encode_frames)(given, width, [out[place] for place in some])
            for place, size in zip(some, made, strict=True):
                used[place] = size
        return used

    def begin_read_all(self, data: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[Tensor | int]:
        """The same for several messages."""
        if not data:
            return []
        given = [one.detach().contiguous() for one in data]
        return list(find("rans.decode", given[0], decode_frames)(given, width, out))


def bad_symbol(symbols: Tensor, width: int) -> ValueError:
    """The error for a symbol that does not fit, which the histogram has seen."""
    return ValueError(f"{Rans.name}: symbol {int(symbols.max())} does not fit {width} bits")


def encode_frames(symbols: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[int]:
    """Frames by C++."""
    return [encode_frame(one, width, to) for one, to in zip(symbols, out, strict=True)]


def decode_frames(data: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[int]:
    """The symbols of frames by C++."""
    return [decode_frame(one, width, to) for one, to in zip(data, out, strict=True)]


def encode_frame(symbols: Tensor, width: int, out: Tensor) -> int:
    """A frame by C++; other devices' tensors pass through the host's memory."""

    def code(s: Tensor, to: Tensor) -> int:
        used = encode(s, to, width)
        if used == BAD_SYMBOL:
            raise bad_symbol(s, width)
        return used

    to = out if out.is_cpu else torch.empty(frame_bound(symbols.numel(), width), dtype=torch.uint8)
    used = frame_into(to, local(symbols), width, code)
    if to is not out:
        out[:used].copy_(to[:used])
    return used


def decode_frame(data: Tensor, width: int, out: Tensor) -> int:
    """The symbols of a frame by C++; other devices' tensors pass through the host's memory."""
    to = out if out.is_cpu else torch.empty(out.numel(), dtype=torch.uint8)
    if data[0] == JOINED and together(width) > 1:
        split(local(data), width, to)
    else:
        unframe_into(to, Rans.name, data, width, lambda bytes_, s: decode(bytes_, s, width))
    if to is not out:
        out.copy_(to)
    return 0


def split(data: Tensor, width: int, out: Tensor) -> None:
    """The symbols of a frame whose symbols were joined."""
    each = together(width)
    joined = torch.empty(-(-out.numel() // each), dtype=torch.uint8)
    check(Rans.name, decode(data[1:], joined, 8))
    fields = (joined[:, None] >> (8 // each * torch.arange(each, dtype=torch.uint8))) & ((1 << 8 // each) - 1)
    out.copy_(fields.view(-1)[: out.numel()])
    check(Rans.name, BAD_SYMBOL if int(out.max()) >> width else 0)


def encode(symbols: Tensor, out: Tensor, width: int = 8, chunk: int = 0) -> int:
    """The bytes written to `out`, negative if it is too short; the same by plain code and by AVX-512.

    `chunk` is log2 of the symbols of a chunk, which then has 32 states; 0 leaves both to the rule, and LIKE_A_GPU to
    that of GPUs.
    """
    arguments = (symbols.data_ptr(), symbols.numel(), out.data_ptr(), out.numel(), 1 << width)
    return int(codes().rans_encode(*arguments, torch.get_num_threads(), chunk, select(symbols).vectors >= AVX512))


def decode(data: Tensor, out: Tensor, width: int) -> int:
    """Fill `out`; returns a fault or 0."""
    arguments = (data.data_ptr(), data.numel(), out.data_ptr(), out.numel(), 1 << width, torch.get_num_threads())
    return int(codes().rans_decode(*arguments, select(data).vectors >= AVX512))
