"""Round-robin synchronous parallel: workers push and pull one at a time, in a fixed order, evenly spaced.

    worker i waits until it is its turn and `gap` seconds have passed since the last one began
    gap = (mean seconds that a worker computes) / (1.2 n)
    x = x - eta (b_i / mean of b) g_i          b_i: samples of worker i's batch, where it says so

The first `profile` steps of each worker run in order without a gap, to find the mean; afterwards it follows what
workers say. Every gradient misses exactly the n - 1 updates of the others. Workers that say how large their batches
are learn what they should be for all to take equally long: in proportion to their samples per second.

Reference: Chen, Wang, Li, "Round-robin synchronization: mitigating communication bottlenecks in parameter servers",
INFOCOM 2019; `gap` is that of the authors' coordinator.

Departs from the paper: the first steps keep the order, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.server.rule import Push, Rule

if TYPE_CHECKING:
    from thinwire.server.book import Book


@dataclass
class _Turns:
    ready: set[int] = field(default_factory=set)
    turn: int = 0  # whose turn comes next; those that are not there are passed over
    busy: int | None = None  # who has the turn now
    free: float = 0.0  # when the next turn may begin
    seconds: dict[int, float] = field(default_factory=dict)  # by worker, what its last step took
    samples: dict[int, float] = field(default_factory=dict)  # by worker, what its last gradient was the mean over


@final
@dataclass(frozen=True)
class R2sp(Rule):
    """`spread` is the paper's 1.2: a round of turns is a little shorter than a step."""

    name: ClassVar[str] = "r2sp"
    takes_ways: ClassVar[bool] = True
    turns: ClassVar[bool] = True
    profile: int = 10
    spread: float = 1.2

    def __post_init__(self) -> None:
        if self.profile < 0 or self.spread <= 0:
            raise ValueError(f"R2sp(profile={self.profile}, spread={self.spread}): write profile >= 0 and spread > 0")

    def init(self, workers: int) -> _Turns:
        """Whose turn it is."""
        return _Turns()

    def ready(self, rank: int, book: Book) -> None:
        """Note that a worker has its gradient."""
        book.state.ready.add(rank)
        self._next(book)

    def arrived(self, push: Push, book: Book) -> None:
        """Apply and answer; then it is the next one's turn."""
        turns: _Turns = book.state
        turns.seconds[push.rank] = push.seconds
        if push.samples:
            turns.samples[push.rank] = push.samples
        mean = sum(turns.samples.values()) / max(1, len(turns.samples))
        book.apply([push], scale=push.samples / mean if push.samples else 1.0)
        self._done(push, book)

    def refused(self, push: Push, book: Book) -> None:
        """It has had its turn."""
        book.drop(push)
        self._done(push, book)

    def left(self, rank: int, book: Book) -> None:
        """Its turns are left out."""
        turns: _Turns = book.state
        turns.ready.discard(rank)
        if turns.busy == rank:
            turns.busy = None
        self._next(book)

    def share(self, rank: int, book: Book) -> float:
        """In proportion to its samples per second, once all have been timed; the mean share is 1."""
        turns: _Turns = book.state
        if book.slowest < max(1, self.profile) or set(turns.samples) < book.alive or rank not in turns.samples:
            return 1.0
        timed = {one: turns.seconds[one] for one in turns.samples if turns.seconds[one] > 0}
        paces = {one: turns.samples[one] / seconds for one, seconds in timed.items()}
        return paces[rank] * len(paces) / sum(paces.values()) if rank in paces else 1.0

    def _done(self, push: Push, book: Book) -> None:
        book.answer(push.rank)
        book.state.turn, book.state.busy = (push.rank + 1) % book.workers, None
        self._next(book)

    def _next(self, book: Book) -> None:
        turns: _Turns = book.state
        if turns.busy is not None or not book.alive:
            return
        after = [(turns.turn + ahead) % book.workers for ahead in range(book.workers)]
        who = next(rank for rank in after if rank in book.alive)
        if who not in turns.ready:
            return
        turns.ready.remove(who)
        turns.busy = who
        begins = max(book.now(), turns.free)
        if book.slowest >= self.profile and turns.seconds:
            mean = sum(turns.seconds.values()) / len(turns.seconds)
            turns.free = begins + mean / (self.spread * len(book.alive))
        book.grant(who, begins)
