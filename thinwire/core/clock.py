"""Clock: what was done when. Exchanges mark their passes and drivers the time on the wire; the engine reads both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeAlias, final

Now: TypeAlias = Callable[[], float]


class Stamp(Protocol):
    """A moment in a GPU's queue: torch.cuda.Event."""

    def synchronize(self) -> None:
        """Wait until the queue has come this far."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds until a later one."""


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

    __slots__ = ("_clock", "_queued", "_start", "_what")

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock, self._what, self._start = clock, what, clock.now()

    def __enter__(self) -> None:
        if self._clock.stamp is not None:
            self._queued = self._clock.stamp(self._what != "wire")

    def __exit__(self, *_: object) -> None:
        clock = self._clock
        if clock.stamp is not None:
            clock.queued.append((self._what, self._queued, clock.stamp(False)))
        clock.notes.append((self._what, self._start, clock.now()))


@final
@dataclass
class Clock:
    """The spans of one chunk of one bucket, in the order in which they ended."""

    bucket: int = 0
    chunk: int = 0
    notes: list[tuple[str, float, float]] = field(default_factory=list)  # what, from when, until when
    now: Now = perf_counter
    stamp: Callable[[bool], Stamp] | None = None
    """Where a GPU is timed too: a stamp at the end of what is queued; with True, at the start of work that is to be
    timed, which the GPU holds back until the host has queued all of it. The host's own spans cover the queueing."""
    queued: list[tuple[str, Stamp, Stamp]] = field(default_factory=list)

    def span(self, what: str) -> Running:
        """Time the block."""
        return Running(self, what)

    def mark(self, what: str) -> None:
        """Record a span without length, for something that happens now."""
        now = self.now()
        self.notes.append((what, now, now))

    @property
    def spans(self) -> list[Span]:
        """What was noted, made when somebody asks."""
        return [Span(what, start, stop, self.bucket, self.chunk) for what, start, stop in self.notes]
