"""Backup workers: a step takes the first N gradients of N + b, and drops those that come later.

    x_t+1 = x_t - eta (1/N) sum of the first N gradients computed at x_t

A worker whose gradient comes too late goes on with the model as it is then. With b = 0 it is bulk-synchronous.

Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016, arXiv 1604.00981.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.server.rule import Push, Rule

if TYPE_CHECKING:
    from thinwire.server.book import Book


@final
@dataclass(frozen=True)
class Backup(Rule):
    """`spares` is b."""

    name: ClassVar[str] = "backup"
    takes_ways: ClassVar[bool] = True
    spares: int = 1

    def __post_init__(self) -> None:
        if self.spares < 0:
            raise ValueError(f"Backup(spares={self.spares}): write 0 to wait for all workers, or more")

    def check(self, workers: int) -> None:
        """Somebody must be waited for."""
        if self.spares >= workers:
            raise ValueError(f"Backup(spares={self.spares}) with {workers} workers waits for nobody; write fewer")

    def init(self, workers: int) -> list[Push]:
        """The gradients of this step."""
        return []

    def arrived(self, push: Push, book: Book) -> None:
        """Keep it if it is of this step."""
        if push.tag < book.version:
            book.drop(push)
            book.answer(push.rank)
            return
        book.state.append(push)
        self._step(book)

    def left(self, rank: int, book: Book) -> None:
        """Go on with fewer, where too few are left."""
        self._step(book)

    def _step(self, book: Book) -> None:
        some: list[Push] = book.state
        if some and len(some) >= min(book.workers - self.spares, len({*book.alive, *(one.rank for one in some)})):
            book.apply(some)
            for one in some:
                book.answer(one.rank)
            some.clear()
