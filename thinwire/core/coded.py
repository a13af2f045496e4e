"""Coded: a compressor whose symbols go through a codec instead of into fields of equal width.

The body is the compressor's side information (scales), then the codec's bytes; its size depends on the data.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.codec import Codec
from thinwire.core.compressor import Compressor
from thinwire.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.core.payload import Payload
    from thinwire.core.types import Key, Layout
    from thinwire.core.verdicts import Verdicts


class SymbolCompressor(Compressor):
    """A compressor that can hand out its integer symbols, one byte each, before they are packed."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Symbols lie in 0 .. 2^width - 1; small ones stand for small magnitudes."""

    @abstractmethod
    def side_bytes(self, layout: Layout) -> int:
        """Bytes of what is sent besides the symbols."""

    @abstractmethod
    def write_symbols(self, x: Tensor, layout: Layout, key: Key, side: Tensor) -> Tensor:
        """Fill `side` and return the symbols of `x`, uint8, in element order."""

    @abstractmethod
    def add_symbols(self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """`out += weight * decoded`, in place. The symbols may be changed too."""

    def put_symbols(self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """`out = weight * decoded`. The symbols may be changed too."""
        self.add_symbols(side, symbols, layout, out.zero_(), weight)


class FeedbackSymbols(SymbolCompressor):
    """A compressor that can keep the error in the pass that makes symbols."""

    @abstractmethod
    def write_symbols_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, side: Tensor, e: Tensor, alpha: float, beta: float
    ) -> Tensor:
        """Call `write_symbols` with p = x + alpha e; then e = beta e + (x - decoded p), in place."""


@final
@dataclass(frozen=True)
class Coded(Compressor):
    """`compressor` with its symbols coded by `codec`."""

    name: ClassVar[str] = "coded"
    fixed_size: ClassVar[bool] = False
    compressor: SymbolCompressor
    codec: Codec

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, SymbolCompressor):
            raise TypeError(
                f"{self.compressor!r} has no integer symbols for a codec; "
                f"leave the codec out: Channel({self.compressor!r})"
            )
        for fact in ("keeps_scale", "whole_tensors"):  # facts of the class elsewhere, here of the inner compressor
            object.__setattr__(self, fact, getattr(self.compressor, fact))
        object.__setattr__(self, "decodes_any", self.compressor.decodes_any and self.codec.defers)

    @property
    def unbiased(self) -> bool:
        """Whether the compressor is."""
        return self.compressor.unbiased

    def omega(self, d: int) -> float | None:
        """The compressor's omega."""
        return self.compressor.omega(d)

    def delta(self, d: int) -> float | None:
        """The compressor's delta."""
        return self.compressor.delta(d)

    def nbytes(self, layout: Layout) -> int:
        """The bytes of the side information, and the codec's bound."""
        return self.compressor.side_bytes(layout) + self.codec.bound(layout.numel, self.compressor.width)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | Tensor:
        """Write the side information, then the codec's bytes."""
        side = self.compressor.side_bytes(layout)
        symbols = self.compressor.write_symbols(x, layout, key, body[:side])
        return side + self.codec.begin_write(symbols, self.compressor.width, body[side:])

    def write_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, e: Tensor, alpha: float, beta: float
    ) -> int | Tensor | None:
        """Encode, and keep the error, which is known before the codec runs because the codec loses nothing."""
        if not isinstance(self.compressor, FeedbackSymbols):
            return super().write_with_feedback(x, layout, key, body, e, alpha, beta)
        side = self.compressor.side_bytes(layout)
        symbols = self.compressor.write_symbols_with_feedback(x, layout, key, body[:side], e, alpha, beta)
        return side + self.codec.begin_write(symbols, self.compressor.width, body[side:])

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Decode the symbols and add."""
        self.compressor.add_symbols(*self._read(body, layout), layout, out, weight)

    def put(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Decode the symbols and write."""
        self.compressor.put_symbols(*self._read(body, layout), layout, out, weight)

    def mean(
        self, payloads: Sequence[Payload], layout: Layout, out: Tensor, weight: float, key: Key | None = None
    ) -> None:
        """One after another; what a GPU finds wrong with the codec's bytes is left to the payload's `later`."""
        if not (self.decodes_any and layout.numel and all(payload.later is not None for payload in payloads)):
            super().mean(payloads, layout, out, weight, key)
            return
        for payload in payloads:
            self.check(payload, layout, out, key)
        if not payloads:
            out.zero_()
        flat = out.detach().view(-1)
        for place, payload in enumerate(payloads):
            side, symbols = self._read(payload.aligned().body, layout, payload.later)
            (self.compressor.add_symbols if place else self.compressor.put_symbols)(
                side, symbols, layout, flat, weight
            )

    def _read(self, body: Tensor, layout: Layout, later: Verdicts | None = None) -> tuple[Tensor, Tensor]:
        """The side information and the symbols of a body."""
        side = self.compressor.side_bytes(layout)
        if body.numel() < side:
            raise PayloadError(f"{self.id} has at least {side} body bytes; {body.numel()} arrived")
        symbols, data = torch.empty(layout.numel, dtype=torch.uint8, device=body.device), body[side:]
        if later is None or not data.numel():
            self.codec.read(data, self.compressor.width, symbols)
            return body[:side], symbols
        fault = self.codec.begin_read(data, self.compressor.width, symbols)
        wrong = f"{self.id}: what arrived cannot be decoded"
        if isinstance(fault, torch.Tensor):
            later.add(fault, wrong)
        elif fault:
            raise PayloadError(wrong)
        return body[:side], symbols
