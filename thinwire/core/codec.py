"""Codec: lossless bytes for the integer symbols of a compressor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from thinwire.core.config import Config
from thinwire.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Codec(Config, ABC):
    """Turns symbols 0 .. 2^width - 1, one byte each, into fewer bytes and back without loss."""

    defers: ClassVar[bool] = False
    """Whether `begin_read` takes any bytes and, on a GPU, leaves the fault there."""

    @abstractmethod
    def bound(self, n: int, width: int) -> int:
        """The most bytes that `n` symbols can take."""

    @abstractmethod
    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols` (uint8) that each fit `width` bits."""

    @abstractmethod
    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`, uint8; raises `PayloadError` when `data` cannot be theirs."""

    def write(self, symbols: Tensor, width: int, out: Tensor) -> int:
        """Pack into `out`; returns the bytes used."""
        data = self.pack(symbols, width)
        out[: data.numel()].copy_(data)
        return data.numel()

    def read(self, data: Tensor, width: int, out: Tensor) -> None:
        """Unpack as many symbols into `out` as it holds."""
        symbols = self.unpack(data, out.numel(), width)
        if symbols.numel() != out.numel():
            raise PayloadError(f"{self.id} gave {symbols.numel()} symbols for {out.numel()} elements")
        out.copy_(symbols)

    def begin_write(self, symbols: Tensor, width: int, out: Tensor) -> Tensor | int:
        """The same as `write`, but the bytes used may be an element on a GPU, below 0 for a symbol too large."""
        return self.write(symbols, width, out)

    def begin_read(self, data: Tensor, width: int, out: Tensor) -> Tensor | int:
        """The same, but a fault of `data` may be a number on a GPU that is not 0; `out` then holds anything."""
        self.read(data, width, out)
        return 0

    def begin_write_all(self, symbols: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[Tensor | int]:
        """`begin_write` for several vectors, which a GPU may pack together."""
        return [self.begin_write(one, width, to) for one, to in zip(symbols, out, strict=True)]

    def begin_read_all(self, data: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[Tensor | int]:
        """`begin_read` for several messages, which a GPU may unpack together."""
        return [self.begin_read(one, width, to) for one, to in zip(data, out, strict=True)]
