"""Stale synchronous parallel: the fastest worker is at most s steps ahead of the slowest.

A worker may begin its step number c if c minus that of the slowest worker is at most s (`Sync(staleness=s)`). What it
reads holds all updates of steps before c - s, and its own.

    reads="latest"      the model as it is, with whatever has arrived
    reads="snapshot"    exactly the updates of all completed steps, in the order of steps and ranks, and the worker's
                        own; with s = 0 these are the iterates of bulk-synchronous SGD. An update has one weight,
                        wherever it is seen: lr / n, with n the workers whose gradients the step is the mean of
    cache=True          a worker is sent no model while the one that it has is new enough, and steps on that itself

Reference: Ho, Cipar, Cui, et al., "More effective distributed ML via a stale synchronous parallel parameter server",
NeurIPS 2013.

Departs from the paper: a worker's own updates on top of a snapshot are plain steps of gradient descent, whatever the
optimizer. Where another worker's gradient of the same step then turns out not to be finite, the mean is over fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, final

from thinwire.server.rule import Push, Rule

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.server.book import Book

Reads = Literal["latest", "snapshot"]


@dataclass
class _Held:
    waiting: list[int] = field(default_factory=list)
    pending: list[Push] = field(default_factory=list)  # of steps that are not complete
    seen: dict[int, int] = field(default_factory=dict)  # by worker: the slowest clock when it was sent a model


@final
@dataclass(frozen=True)
class Ssp(Rule):
    """How far ahead a worker may be is the staleness of the method's `Sync`."""

    name: ClassVar[str] = "ssp"
    takes_ways: ClassVar[bool] = True
    bounded: ClassVar[bool] = True
    reads: Reads = "latest"
    cache: bool = False

    def __post_init__(self) -> None:
        if self.reads not in ("latest", "snapshot"):
            raise ValueError(f"Ssp(reads={self.reads!r}): write reads='latest' or reads='snapshot'")
        if self.cache and self.reads == "snapshot":
            raise ValueError("Ssp(cache=True) keeps a model that is not a snapshot; write reads='latest'")

    def init(self, workers: int) -> _Held:
        """Who waits, and for what."""
        return _Held()

    def arrived(self, push: Push, book: Book) -> None:
        """Apply now or when the step is complete, and let everybody go on who may."""
        if self.reads == "latest":
            book.apply([push])
        else:
            book.state.pending.append(push)
        book.state.waiting.append(push.rank)
        self._go_on(book)

    def refused(self, push: Push, book: Book) -> None:
        """Its step counts all the same."""
        book.drop(push)
        book.state.waiting.append(push.rank)
        self._go_on(book)

    def left(self, rank: int, book: Book) -> None:
        """Its clock no longer counts."""
        self._go_on(book)

    def _go_on(self, book: Book) -> None:
        held, slowest = book.state, book.slowest
        assert book.bound is not None
        for clock in sorted({push.clock for push in held.pending if push.clock < slowest or book.over}):
            book.apply([push for push in held.pending if push.clock == clock])
            held.pending = [push for push in held.pending if push.clock != clock]
        for rank in [rank for rank in held.waiting if book.clocks[rank] - slowest <= book.bound]:
            held.waiting.remove(rank)
            fresh = self.cache and held.seen.get(rank, -1) >= book.clocks[rank] - book.bound
            if not fresh:
                held.seen[rank] = slowest
            book.answer(rank, model=self._read(rank, book), empty=fresh)

    def _read(self, rank: int, book: Book) -> Tensor | None:
        own = [push for push in book.state.pending if push.rank == rank]
        if not own:
            return None
        x = book.x.clone()
        for push in own:
            book.descend(x, push, 1 / self._sharers(push.clock, book))
        return x

    def _sharers(self, clock: int, book: Book) -> int:
        """How many gradients a step that is not complete is the mean of: those that are here, and those to come."""
        held: _Held = book.state
        here = sum(push.clock == clock for push in held.pending)
        to_come = book.alive | book.paused | book.away
        return here + sum(book.clocks[rank] <= clock for rank in to_come)
