"""Clock: what was done when. Exchanges mark their passes and drivers the time on the wire; the engine reads both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, TypeAlias, final

Now: TypeAlias = Callable[[], float]


class Span(NamedTuple):
    """One piece of work: `what` is encode, wire, decode, or a mark that the engine made."""

    what: str
    start: float  # seconds, as the driver's time goes
    stop: float
    bucket: int
    chunk: int


@final
class Running:
    """A span that has not ended."""

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock, self._what = clock, what

    def __enter__(self) -> None:
        self._start = self._clock.now()

    def __exit__(self, *_: object) -> None:
        clock = self._clock
        clock.spans.append(Span(self._what, self._start, clock.now(), clock.bucket, clock.chunk))


@final
@dataclass
class Clock:
    """The spans of one chunk of one bucket, in the order in which they ended."""

    bucket: int = 0
    chunk: int = 0
    spans: list[Span] = field(default_factory=list)
    now: Now = perf_counter

    def span(self, what: str) -> Running:
        """Time the block."""
        return Running(self, what)

    def mark(self, what: str) -> None:
        """Record a span without length, for something that happens now."""
        now = self.now()
        self.spans.append(Span(what, now, now, self.bucket, self.chunk))
