"""Coded: a compressor whose symbols go through a codec instead of into fields of equal width.

The body is the compressor's side information (scales), then the codec's bytes; its size depends on the data.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar, final

import torch

from thinwire.core.codec import Codec
from thinwire.core.compressor import Compressor
from thinwire.core.errors import PayloadError
from thinwire.core.started import Symbols, Used, Written, whole, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from thinwire.core.payload import Payload
    from thinwire.core.types import Key, Layout


AT_ONCE = 8  # payloads whose symbols are in memory at the same time
Wanted: TypeAlias = "tuple[Payload, Layout, Tensor, Key | None]"
"""A payload, its layout, where it is decoded to, and the key of its round."""
T = TypeVar("T")


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

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | Tensor | None:
        """Write the side information, then the codec's bytes."""
        return whole(written([self.start(x, layout, key, body, None)])[0])

    def write_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, e: Tensor, alpha: float, beta: float
    ) -> int | Tensor | None:
        """Encode, and keep the error, which is known before the codec runs because the codec loses nothing."""
        if not isinstance(self.compressor, FeedbackSymbols):
            return super().write_with_feedback(x, layout, key, body, e, alpha, beta)
        return whole(written([self.start(x, layout, key, body, (e, alpha, beta))])[0])

    def start(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, fed: tuple[Tensor, float, float] | None
    ) -> Used:
        """The side information, and the symbols that the codec is to write; on a CPU it writes them at once."""
        c, side = self.compressor, self.compressor.side_bytes(layout)
        if fed is None:
            symbols = c.write_symbols(x, layout, key, body[:side])
        elif isinstance(c, FeedbackSymbols):
            symbols = c.write_symbols_with_feedback(x, layout, key, body[:side], *fed)
        else:
            return self.write_with_feedback(x, layout, key, body, *fed)
        if symbols.is_cpu:  # while they are in the cache
            return whole(Written(self.codec.begin_write(symbols, c.width, body[side:]), side))
        return Symbols(self.codec, symbols, c.width, body[side:], side)

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Decode the symbols and add."""
        self.compressor.add_symbols(*self._read(body, layout), layout, out, weight)

    def put(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Decode the symbols and write."""
        self.compressor.put_symbols(*self._read(body, layout), layout, out, weight)

    def mean(
        self, payloads: Sequence[Payload], layout: Layout, out: Tensor, weight: float, key: Key | None = None
    ) -> None:
        """Added in order; what a GPU finds wrong with the codec's bytes is left to the payload's `later`."""
        if not (layout.numel and payloads and all(self._defers(payload) for payload in payloads)):
            super().mean(payloads, layout, out, weight, key)
            return
        flat, join = out.detach().view(-1), self.compressor.put_symbols
        for some in _few([(payload, layout, out, key) for payload in payloads]):
            for side, symbols in self._read_all(some):
                join(side, symbols, layout, flat, weight)
                join = self.compressor.add_symbols

    def put_each(self, wanted: Sequence[tuple[Payload, Layout, Tensor, Key]]) -> None:
        """Several at once, where a GPU leaves what is wrong with the codec's bytes to the payloads' `later`."""
        if not all(layout.numel and self._defers(payload) for payload, layout, _, _ in wanted):
            super().put_each(wanted)
            return
        for some in _few(wanted):
            for (_, layout, out, _), (side, symbols) in zip(some, self._read_all(some), strict=True):
                self.compressor.put_symbols(side, symbols, layout, out.detach().view(-1), 1.0)

    def _defers(self, payload: Payload) -> bool:
        return self.decodes_any and payload.later is not None

    def _read(self, body: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """The side information and the symbols of a body."""
        side, data, symbols = self._room(body, layout)
        self.codec.read(data, self.compressor.width, symbols)
        return side, symbols

    def _room(self, body: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """The side information and the codec's bytes of a body, and memory for its symbols."""
        side = self.compressor.side_bytes(layout)
        if body.numel() < side:
            raise PayloadError(f"{self.id} has at least {side} body bytes; {body.numel()} arrived")
        return body[:side], body[side:], torch.empty(layout.numel, dtype=torch.uint8, device=body.device)

    def _read_all(self, wanted: Sequence[Wanted]) -> list[tuple[Tensor, Tensor]]:
        """The same for payloads whose faults are left to their `later`, after all other checks."""
        for payload, layout, out, key in wanted:
            self.check(payload, layout, out, key)
        rooms = [self._room(payload.aligned().body, layout) for payload, layout, _, _ in wanted]
        wrong = f"{self.id}: what arrived cannot be decoded"
        if not all(data.numel() for _, data, _ in rooms):
            raise PayloadError(wrong)
        datas, symbols = [data for _, data, _ in rooms], [room for _, _, room in rooms]
        faults = self.codec.begin_read_all(datas, self.compressor.width, symbols)
        for (payload, _, _, _), fault in zip(wanted, faults, strict=True):
            if isinstance(fault, torch.Tensor) and payload.later is not None:
                payload.later.add(fault, wrong)
            elif fault:
                raise PayloadError(wrong)
        return [(side, room) for side, _, room in rooms]


def _few(wanted: Sequence[T]) -> Iterator[Sequence[T]]:
    """So many at a time that the memory for their symbols does not grow with the number of ranks."""
    for at in range(0, len(wanted), AT_ONCE):
        yield wanted[at : at + AT_ONCE]
