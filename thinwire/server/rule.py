"""Rule: what a server does with a gradient, and when its sender may go on.

A worker pushes a gradient and waits for an answer. The rule decides whether the gradient is applied, kept or dropped,
and whom the server answers now: those go on with the model as it is then. Rules are values; what they remember lies
in the book. A rule also has a worker's half (`thinwire/server/worker.py`), for methods that send something other than
the gradient, or do something with the answer.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from thinwire.server.worker import WorkerHalf

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.server.book import Book


class Push(NamedTuple):
    """A gradient with where it comes from."""

    rank: int
    tag: int  # version of the model that it was computed with
    clock: int  # how many gradients the worker has pushed before
    seconds: float  # that the worker computed
    samples: float  # that the gradient is the mean over, or 0 where the worker has not said
    lrs: tuple[float, ...]  # of the worker's parameter groups
    gradient: Tensor  # or what else the worker's half pushes; several vectors are rows
    keys: Tensor | None = None  # which elements were sent, where the others are zero


class Rule(WorkerHalf):
    """Base class. Every method of the server's half is called by one thread at a time."""

    backups: ClassVar[bool] = False
    """Whether the book keeps the model that each worker was sent last."""
    turns: ClassVar[bool] = False
    """Whether a worker asks for its turn before it pushes."""
    bounded: ClassVar[bool] = False
    """Whether `Sync(staleness=s)` bounds how far ahead a worker may be; otherwise it must be None."""
    steps: ClassVar[bool] = True
    """Whether the server takes steps of the workers' optimizer; otherwise the rule makes the model itself."""
    takes_ways: ClassVar[bool] = False
    """Whether what workers push may be the way of some local steps (`Sync(of=Delta())`)."""

    whole: ClassVar[bool] = False
    """Whether one server must keep all of the model, since servers of shards might wait for different workers."""
    words: ClassVar[bool] = False
    """Whether answers must arrive as they are, since only `pull` understands them; they may be of any length."""

    def init(self, workers: int) -> Any:
        """What the rule remembers."""
        return None

    def check(self, workers: int) -> None:
        """Refuse a number of workers that the rule does not fit."""

    @abstractmethod
    def arrived(self, push: Push, book: Book) -> None:
        """Take a gradient."""

    def refused(self, push: Push, book: Book) -> None:
        """Take notice of a gradient that is not finite, and is not used."""
        book.drop(push)
        book.answer(push.rank)

    def ready(self, rank: int, book: Book) -> None:
        """A worker asks for its turn."""
        book.grant(rank)

    def figures(self, book: Book) -> dict[str, float]:
        """Further figures for `stats()` of a server."""
        return {}

    def left(self, rank: int, book: Book) -> None:
        """A worker has ended, died or paused; the book no longer counts it."""

    def share(self, rank: int, book: Book) -> float:
        """What a worker's batch should be, as a multiple of the mean batch."""
        return 1.0

    def result(self, book: Book) -> Tensor:
        """The model that training ends with."""
        return book.x
