"""Clock: what was done when. Exchanges mark their passes, drivers the time on the wire; the engine reads it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Iterator


class Span(NamedTuple):
    """One piece of work: `what` is encode, wire, decode, or a mark of the engine's."""

    what: str
    start: float  # seconds of time.perf_counter
    stop: float
    bucket: int
    chunk: int


@final
@dataclass
class Clock:
    """Spans of one chunk of one bucket, in the order in which they ended."""

    bucket: int = 0
    chunk: int = 0
    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def span(self, what: str) -> Iterator[None]:
        """Time the block."""
        start = perf_counter()
        try:
            yield
        finally:
            self.spans.append(Span(what, start, perf_counter(), self.bucket, self.chunk))

    def mark(self, what: str) -> None:
        """A span without length: that something happened now."""
        now = perf_counter()
        self.spans.append(Span(what, now, now, self.bucket, self.chunk))
