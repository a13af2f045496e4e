"""Codec: lossless bytes for the integer symbols of a compressor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from thinwire.core.config import Config

if TYPE_CHECKING:
    from torch import Tensor


class Codec(Config, ABC):
    """Symbols 0 .. 2^width - 1, one byte each, to fewer bytes and back without loss."""

    @abstractmethod
    def bound(self, n: int, width: int) -> int:
        """The most bytes that `n` symbols can take."""

    @abstractmethod
    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols` (uint8) that each fit `width` bits."""

    @abstractmethod
    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`, uint8; `PayloadError` when `data` cannot be such bytes."""
