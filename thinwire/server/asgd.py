"""Asynchronous SGD: every gradient is applied when it arrives, and its sender goes on with the result.

    x = x - eta g(x_then)                       staleness tau = updates between then and now
    x = x - eta / max(1, tau) g(x_then)         staleness-aware

References: Dean, Corrado, Monga, et al., "Large scale distributed deep networks", NeurIPS 2012. Zhang, Gupta, Lian,
Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016, arXiv 1511.05950: the second line, and
n-softsync, which applies the mean of every floor(workers / splits) gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.server.rule import Push, Rule

if TYPE_CHECKING:
    from thinwire.server.book import Book


@final
@dataclass(frozen=True)
class Asgd(Rule):
    """`aware` divides the step by the staleness."""

    name: ClassVar[str] = "asgd"
    takes_ways: ClassVar[bool] = True
    aware: bool = False

    def arrived(self, push: Push, book: Book) -> None:
        """Apply and answer."""
        stale = book.version - push.tag
        book.apply([push], scale=1 / max(1, stale) if self.aware else 1.0)
        book.answer(push.rank)


@final
@dataclass(frozen=True)
class Softsync(Rule):
    """An update for every floor(workers / `splits`) gradients; nobody waits for it."""

    name: ClassVar[str] = "softsync"
    takes_ways: ClassVar[bool] = True
    splits: int = 1
    aware: bool = False

    def __post_init__(self) -> None:
        if self.splits < 1:
            raise ValueError(f"Softsync(splits={self.splits}): write 1, for one update per round of workers, or more")

    def check(self, workers: int) -> None:
        """There is a gradient per update."""
        if self.splits > workers:
            raise ValueError(f"Softsync(splits={self.splits}) with {workers} workers: write at most one split each")

    def init(self, workers: int) -> list[Push]:
        """Gradients that wait for others."""
        return []

    def arrived(self, push: Push, book: Book) -> None:
        """Keep, apply when there are enough, and answer at once."""
        some: list[Push] = book.state
        some.append(push)
        if len(some) >= book.workers // self.splits:
            oldest = max(book.version - one.tag for one in some)
            book.apply(some, scale=1 / max(1, oldest) if self.aware else 1.0)
            some.clear()
        book.answer(push.rank)
