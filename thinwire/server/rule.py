"""Rule: what a server does with a gradient, and when its sender may go on.

A worker pushes a gradient and waits for an answer. The rule decides whether the gradient is applied, kept or dropped,
and whom the server answers now: those go on with the model as it is then. Rules are values; what they remember lies
in the book.

A rule also has a worker's half, for methods that send something other than the gradient, or do something with the
answer. What that half remembers is a dict of tensors (`worker`), which belongs to the worker:

    lean        with `local_steps`: the gradient of the worker's own steps, before each of them
    elsewhere   another model at which the gradient of the same batch is computed, too
    push        what is sent; by default the gradient. With nothing to send, the worker goes on as it is
    precise     whether that goes up in float32, whatever the channel does
    sent        what the server decodes, told to rules that say `echoes`
    pull        the model to go on with; by default the answer

Every one of them works element by element, so that a model that is cut into pieces may be served piece by piece.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from thinwire.core.config import Config

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, State
    from thinwire.server.book import Book
    from thinwire.server.keys import Keyed


class Work(NamedTuple):
    """What a worker has when it pushes."""

    x: Tensor  # its model
    gradient: Tensor  # at x
    lr: Tensor  # of every element, or one for all
    key: Key  # seed, pushes so far, rank
    more: dict[str, Tensor]  # by name, the attributes of parameters that the rule `wants`; "again": see `elsewhere`


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


class Rule(Config):
    """Base class. Every method of the server's half is called by one thread at a time."""

    backups: ClassVar[bool] = False
    """Whether the book keeps the model that each worker was sent last."""
    turns: ClassVar[bool] = False
    """Whether a worker asks for its turn before it pushes."""
    bounded: ClassVar[bool] = False
    """Whether `Sync(staleness=s)` bounds how far ahead a worker may be; otherwise it must be None."""
    steps: ClassVar[bool] = True
    """Whether the server takes steps of the workers' optimizer; otherwise the rule makes the model itself."""
    local_steps: ClassVar[bool] = False
    """Whether workers take steps of their own, and push after every `Sync(every=...)` of them."""

    echoes: ClassVar[bool] = False
    """Whether a worker is told what the server decodes of its push."""

    whole: ClassVar[bool] = False
    """Whether one server must keep all of the model, since servers of shards might wait for different workers."""
    words: ClassVar[bool] = False
    """Whether answers are vectors of any length that only `pull` understands, and not models."""
    sparse: ClassVar[bool] = False
    """Whether `push` sends some elements only, as `Keyed`; answers then hold what has changed since the last one."""

    @property
    def caches_keys(self) -> bool:
        """Whether a list of keys that was sent before is sent as its checksum."""
        return True

    @property
    def wants(self) -> tuple[str, ...]:
        """Attributes of parameters that `push` needs beside the gradient; the training loop sets them."""
        return ()

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

    # The worker's half.

    def worker(self, x: Tensor, workers: int) -> State:
        """What a worker remembers, from the common model on."""
        return {}

    def lean(self, x: Tensor, gradient: Tensor, state: State) -> Tensor:
        """The gradient that a worker's own step takes, where it takes some."""
        return gradient

    def places(self, key: Key, n: int) -> Tensor | None:
        """Of n elements, those that `push` with this key sends unless it says otherwise; they need not be named."""
        return None

    def elsewhere(self, state: State) -> Tensor | None:
        """A model at which the gradient of the batch is needed, too, in all shards; it is `work.more["again"]`."""
        return None

    def push(self, work: Work, state: State) -> Tensor | Keyed | None:
        """What is sent, or None, then in all shards."""
        return work.gradient

    def precise(self, state: State) -> bool:
        """Whether what `push` has just returned goes up in float32."""
        return False

    def sent(self, decoded: Tensor, state: State) -> None:
        """Take notice of what the server has received."""

    def pull(self, x: Tensor, answer: Tensor, state: State) -> Tensor:
        """The model to go on with, given the worker's own and the server's answer."""
        return answer
