"""Telemetry: what the rounds of one wire cost, when their parts happened, and how far apart the models were."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.clock import Clock, Now, Span, Stamp
from thinwire.engine.stats import TIMED, Mark, Stats

if TYPE_CHECKING:
    from thinwire.core.comm import Traffic
    from thinwire.engine.round import Round

HELD = 8_000_000  # cycles of a GPU, 4 to 6 ms


@final
class Telemetry:
    """Figures of one rank; they outlive a change of method."""

    def __init__(
        self, now: Now, traffic: Sequence[Traffic], ranks: int, waited: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`waited` says for how many seconds the training loop has waited, since some moment."""
        self.now, self.traffic, self.ranks = now, traffic, ranks
        self.stats = Stats()
        self._waited, self._known_wait = waited, 0.0
        self._under_way: list[tuple[float, float]] = []  # from when until when, of what has not been added to `busy`
        self._busy_until = -math.inf
        self._seen: list[tuple[str, float, int, Sequence[Clock]]] = []  # marks of the last round, with what followed
        self.distances: list[tuple[int, float]] = []  # rounds, and how far apart the models were after them
        self.stamp: Callable[[bool], Stamp] | None = None  # where a GPU is timed
        self._queued: list[tuple[str, Stamp, Stamp]] = []  # what it may not have done yet

    def clock(self, bucket: int, chunk: int) -> Clock:
        """A clock for one chunk of a bucket."""
        return Clock(bucket, chunk, now=self.now, stamp=self.stamp)

    @property
    def events(self) -> list[Span]:
        """What happened in the last round, made when somebody asks."""
        found = []
        for what, when, bucket, clocks in self._seen:
            found.append(Span(what, when, when, bucket, -1))
            found += [span for clock in clocks for span in clock.spans]
        return found

    def begin(self) -> None:
        """A round begins."""
        self._seen = []

    def mark(self, what: str) -> None:
        """Note something that concerns the whole round."""
        self._seen.append((what, self.now(), -1, ()))

    def arrived(self, going: Round) -> None:
        """Add a bucket's round."""
        self._seen.append(("launch", going.launched, going.bucket.index, going.clocks))
        for clock in going.clocks:
            self.stats.time(clock.notes)
            self._under_way += [(start, stop) for what, start, stop in clock.notes if what in TIMED]
            self._queued += clock.queued
        self.stats.elements += 0 if going.skipped else going.bucket.layout.numel
        self.stats.skipped += going.agreed.broken > 0

    def step(self, reduced: int, period: int) -> None:
        """An optimizer step has ended, in which DDP would have reduced so many elements."""
        course, waited = self.stats.course, self._waited()
        last = course.last
        mark = Mark(
            last.steps + 1,
            self.now(),
            last.reduced + reduced,
            self.stats.bytes_before + sum(t.bytes for t in self.traffic),
            last.waited + waited - self._known_wait,
            last.busy + self._newly_busy(),
        )
        self._known_wait = waited
        course.step(mark, period)

    def _newly_busy(self) -> float:
        """Seconds that were covered by what has arrived since the last call, and not by anything before."""
        total = 0.0
        for start, stop in sorted(self._under_way):
            total += max(0.0, stop - max(start, self._busy_until))
            self._busy_until = max(self._busy_until, stop)
        self._under_way = []
        return total

    def apart(self, round_: int, distance: float) -> None:
        """Add a measured distance between models."""
        self.distances.append((round_, distance))
        self.stats.distance = distance

    def report(self) -> dict[str, float]:
        """The figures of `Stats`, with what has been sent."""
        self.stats.time_queued(self._queued)
        self._queued = []
        sent, messages = sum(t.bytes for t in self.traffic), sum(t.messages for t in self.traffic)
        return self.stats.report(sent, messages, self.ranks)

    def forget_traffic(self) -> None:
        """Count from here: what attach itself sent is not part of training."""
        for traffic in self.traffic:
            traffic.bytes = traffic.messages = 0
        self._known_wait = self._waited()

    def move(self, traffic: Sequence[Traffic], ranks: int) -> None:
        """Go on counting with other drivers."""
        self.stats.bytes_before += sum(t.bytes for t in self.traffic)
        self.stats.messages_before += sum(t.messages for t in self.traffic)
        self.traffic, self.ranks = traffic, ranks

    def succeed(self, old: Telemetry) -> None:
        """Go on counting where another one stopped."""
        before = old.report()
        self.forget_traffic()
        self.stats, self.distances, self.stamp = old.stats, old.distances, old.stamp
        self.stats.bytes_before, self.stats.messages_before = int(before["bytes_sent"]), int(before["messages"])


def stamp(begins: bool) -> Stamp:
    """The end of what is queued on the current stream, held back where work begins that is to be timed."""
    if begins:  # otherwise the GPU would run each kernel as it is queued, and the time between them would count
        torch.cuda._sleep(HELD)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
