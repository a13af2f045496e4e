"""What the codecs share: the C++ codes, loaded on first use, their faults in words, and plain fields as a way out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from thinwire.codecs.bitpack import BitPack
from thinwire.core.errors import PayloadError
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

ELIAS = {"gamma": 0, "delta": 1, "omega": 2}
FAULTS = {
    -1: "the bytes end before the last symbol",
    -2: "bytes are left over behind the last symbol",
    -3: "the bytes are no codes",
    -4: "a symbol is larger than its width allows",
    -5: "the places do not fit the length",
    -6: "the table of frequencies or lengths is no table",
}
PLAIN, CODED = 0, 1  # the first byte of `frame`


@cache
def codes() -> ModuleType:
    """The extension module."""
    from thinwire.kernels.cpu import _codes  # noqa: PLC0415  (the extension loads on first use)

    return _codes


def local(t: Tensor) -> Tensor:
    """`t` where C++ can read it: contiguous, on the CPU."""
    return t.detach().cpu().contiguous()


def check(name: str, fault: int) -> None:
    """Raise what a decoder found wrong."""
    if fault:
        raise PayloadError(f"{name}: {FAULTS[fault]}")


def fit(name: str, symbols: Tensor, width: int) -> Tensor:
    """The symbols on the CPU, once they are uint8 below 2^width."""
    if not 1 <= width <= 8 or symbols.dtype != torch.uint8:
        raise ValueError(f"{name} codes uint8 symbols of 1 to 8 bits; got {symbols.dtype}, width={width}")
    s = local(symbols)
    if s.numel() and int(s.max()) >> width:
        raise ValueError(f"{name}: symbol {int(s.max())} does not fit {width} bits")
    return s


def frame_bound(n: int, width: int) -> int:
    """The most bytes of `frame`: one more than plain fields."""
    return 1 + packed_bytes(n, width) if n else 0


def frame(symbols: Tensor, width: int, code: Callable[[Tensor, Tensor], int]) -> Tensor:
    """What `code(symbols, out)` writes into `out`, behind a byte; plain fields where it finds no room (negative)."""
    n = symbols.numel()
    out = torch.empty(frame_bound(n, width), dtype=torch.uint8)
    if n == 0:
        return out
    used = code(symbols, out[1:])
    if used >= 0:
        out[0] = CODED
        return out[: 1 + used]
    out[0] = PLAIN
    out[1:] = BitPack().pack(symbols, width)
    return out


def unframe(name: str, data: Tensor, n: int, width: int, decode: Callable[[Tensor, Tensor], int]) -> Tensor:
    """The inverse of `frame`; `decode(bytes, out)` fills `out` and returns a fault or 0."""
    bytes_ = local(data)
    out = torch.empty(n, dtype=torch.uint8)
    if n == 0 or bytes_.numel() == 0:
        check(name, 0 if n == bytes_.numel() else -1 if n else -2)
    elif bytes_[0] == PLAIN:
        out = BitPack().unpack(bytes_[1:].clone(), n, width)
    elif bytes_[0] == CODED:
        check(name, decode(bytes_[1:], out))
    else:
        raise PayloadError(f"{name}: unknown form {int(bytes_[0])}")
    return out.to(data.device)
