"""What the codecs share: the C++ codes, loaded on first use, the words for their faults, and the fallback."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from thinwire.core.bitpack import BitPack
from thinwire.core.desk import brought
from thinwire.core.errors import PayloadError
from thinwire.kernels.compiled import refusal, uncompiled
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

ELIAS = {"gamma": 0, "delta": 1, "omega": 2}
FAULTS = {
    -1: "the bytes end before the last symbol",
    -2: "bytes are left over after the last symbol",
    -3: "the bytes are not codes",
    -4: "a symbol is larger than its width allows",
    -5: "the places do not fit the length",
    -6: "the table of frequencies or lengths is not valid",
}
PLAIN, CODED, JOINED = 0, 1, 2  # the first byte of `frame`; GPUs join narrow symbols (kernels/gpu/rans_join.py)


@cache
def codes() -> ModuleType:
    """The extension module."""
    why = uncompiled()
    if why is not None:
        raise ImportError(refusal("entropy codes", why))
    from thinwire.kernels.cpu import _codes  # noqa: PLC0415  (the extension loads on first use)

    return _codes


def local(t: Tensor) -> Tensor:
    """`t` where C++ can read it: contiguous, on the CPU."""
    return brought(t.detach()).cpu().contiguous()


def check(name: str, fault: int) -> None:
    """Raise an error for what a decoder found wrong."""
    if fault:
        raise PayloadError(f"{name}: {FAULTS[fault]}")


def fit(name: str, symbols: Tensor, width: int) -> Tensor:
    """The symbols on the CPU, after checking that they are uint8 below 2^width."""
    s = local(whole(name, symbols, width))
    if s.numel() and int(s.max()) >> width:
        raise ValueError(f"{name}: symbol {int(s.max())} does not fit {width} bits")
    return s


def whole(name: str, symbols: Tensor, width: int) -> Tensor:
    """The symbols, contiguous, after checking that they are uint8."""
    if not 1 <= width <= 8 or symbols.dtype != torch.uint8:
        raise ValueError(f"{name} codes uint8 symbols of 1 to 8 bits; got {symbols.dtype}, width={width}")
    return symbols.detach().contiguous()


def frame_bound(n: int, width: int) -> int:
    """The most bytes that `frame` can make: one more than plain fields."""
    return 1 + packed_bytes(n, width) if n else 0


def frame(symbols: Tensor, width: int, code: Callable[[Tensor, Tensor], int]) -> Tensor:
    """What `code(symbols, out)` writes, after one byte; plain fields where it finds no room and is negative."""
    out = torch.empty(frame_bound(symbols.numel(), width), dtype=torch.uint8)
    return out[: frame_into(out, symbols, width, code)]


def frame_into(out: Tensor, symbols: Tensor, width: int, code: Callable[[Tensor, Tensor], int]) -> int:
    """Write `frame` to the start of `out`, which has room for the bound; returns the bytes used."""
    bound = frame_bound(symbols.numel(), width)
    if not bound:
        return 0
    used = code(symbols, out[1:bound])
    out[0] = CODED if used >= 0 else PLAIN
    if used < 0:
        out[1:bound] = BitPack().pack(symbols, width)
    return 1 + used if used >= 0 else bound


def unframe(name: str, data: Tensor, n: int, width: int, decode: Callable[[Tensor, Tensor], int]) -> Tensor:
    """The inverse of `frame`; `decode(bytes, out)` fills `out` and returns a fault or 0."""
    out = torch.empty(n, dtype=torch.uint8)
    unframe_into(out, name, data, width, decode)
    return out.to(data.device)


def unframe_into(out: Tensor, name: str, data: Tensor, width: int, decode: Callable[[Tensor, Tensor], int]) -> None:
    """Write the result of `unframe` to `out`, on the CPU."""
    bytes_, n = local(data), out.numel()
    if n == 0 or bytes_.numel() == 0:
        check(name, 0 if n == bytes_.numel() else -1 if n else -2)
    elif bytes_[0] == PLAIN:
        out.copy_(BitPack().unpack(bytes_[1:].clone(), n, width))
    elif bytes_[0] == CODED:
        check(name, decode(bytes_[1:], out))
    else:
        raise PayloadError(f"{name}: unknown form {int(bytes_[0])}")
