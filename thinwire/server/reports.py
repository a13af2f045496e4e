"""Reports: what a server that waits for some of its workers, but not for ever, has heard from each.

A round ends when `least` workers have reported and no other's age has reached the bound, tau - 1 rounds. All who have
reported are answered; their age is 0 then, and the others' one more, so that no age exceeds the bound. A worker that
has ended is no longer waited for, and its last report stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.server.book import Book
    from thinwire.server.rule import Push


@final
@dataclass
class Reports:
    """`latest` is by worker; everybody starts at the common model."""

    new: list[Push] = field(default_factory=list)  # of this round
    here: set[int] = field(default_factory=set)  # who has reported in it, also what cannot be used
    latest: dict[int, Tensor] = field(default_factory=dict)
    age: dict[int, int] = field(default_factory=dict)  # rounds since the last report

    def hear(self, push: Push, book: Book, *, difference: bool) -> None:
        """Take a report: the whole of it, or its `difference` from the last one."""
        self.pass_over(push, book)
        last = self.latest[push.rank]
        self.latest[push.rank] = last + push.gradient if difference else push.gradient
        self.new.append(push)

    def pass_over(self, push: Push, book: Book) -> None:
        """Note that a worker waits for an answer."""
        if not self.latest:
            self.latest = {rank: book.x.clone() for rank in range(book.workers)}
        self.here.add(push.rank)

    def enough(self, book: Book, least: int) -> bool:
        """Whether the round may end."""
        assert book.bound is not None
        late = any(self.age.get(rank, 0) >= book.bound for rank in book.alive - self.here)
        return bool(self.here) and not late and len(self.here) >= min(least, len(book.alive | self.here))

    def total(self) -> Tensor:
        """The sum of the latest reports, in the order of ranks."""
        first, *others = (self.latest[rank] for rank in sorted(self.latest))
        total = first.clone()
        for one in others:
            total += one
        return total

    def close(self, z: Tensor, book: Book) -> None:
        """End the round with a new model, and answer those who have reported."""
        book.replace(z, self.new)
        for rank in range(book.workers):
            self.age[rank] = 0 if rank in self.here else self.age.get(rank, 0) + 1
        for rank in sorted(self.here):
            book.answer(rank)
        self.new, self.here = [], set()
