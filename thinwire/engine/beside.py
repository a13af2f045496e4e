"""Beside: coroutines that run beside the lanes and the training loop, each on one edge of the graph.

In real processes each has a thread, and a process group for its edge: gloo closes all connections of a group when one
receive exceeds its time-out, and a neighbour that hangs must not silence the other edges. On the clock
(`engine/virtual.py`) they are tasks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, final

from thinwire.comm.processes import Processes
from thinwire.core.clock import Now
from thinwire.core.comm import Comm, Traffic, Wait
from thinwire.engine.ending import start_thread
from thinwire.engine.groups import Lent

T = TypeVar("T")


class BrokenEdge(Exception):  # noqa: N818  (it is told as a PeerError)
    """The network failed. Errors in encoding and decoding are not of this kind."""


class Spawned(Protocol):
    """A coroutine under way."""

    @property
    def ended(self) -> bool:
        """Whether it has."""

    @property
    def failure(self) -> BaseException | None:
        """What it raised, if it has ended."""


class Box(ABC):
    """Words from one coroutine to another, in order."""

    @abstractmethod
    def put(self, word: Any) -> None:
        """Leave a word."""

    @abstractmethod
    def take(self, seconds: float | None = None) -> Awaitable[Any]:
        """The next word, or None if there is none for so many seconds."""


class Beside(ABC):
    """Where such coroutines live."""

    comm: Comm
    now: Now
    beat: float | None  # seconds of silence after which a neighbour may think that this rank hangs
    gone: set[int] | None  # neighbours that have broken off, where that is allowed
    dropped: Callable[[int, BaseException | None], None] | None = None  # is told of each, and why
    farewell: Callable[[], Coroutine[Any, Any, object]] | None = None  # what neighbours expect before this rank ends

    @abstractmethod
    def spawn(self, peer: int, work: Callable[[Comm], Coroutine[Any, Any, None]]) -> Spawned:
        """Start a coroutine on the edge to `peer`. A `BrokenEdge` is thrown into it where the network fails."""

    @abstractmethod
    def call(self, work: Callable[[Comm], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Run a coroutine there, and wait for it."""

    @abstractmethod
    def box(self) -> Box:
        """A new box."""

    @abstractmethod
    def join(self, spawned: Sequence[Spawned], seconds: float | None) -> Awaitable[bool]:
        """Wait for coroutines to end; False if some go on for longer than so many seconds."""


@final
class Threads(Beside):
    """A thread for each coroutine."""

    now: Now = staticmethod(time.perf_counter)

    def __init__(self, lent: Lent, gone: set[int] | None, timeout: float, edges: int) -> None:
        self._drivers = [lent.driver(0) for _ in range(max(1, edges))]
        self._free = list(self._drivers)
        self.comm, self.gone, self.beat = self._drivers[0].comm, gone, timeout / 4

    @property
    def traffic(self) -> list[Traffic]:
        """What each thread has sent."""
        return [driver.traffic for driver in self._drivers]

    def spawn(self, peer: int, work: Callable[[Comm], Coroutine[Any, Any, None]]) -> _Thread:
        """Start a thread."""
        return _Thread(self._free.pop(), work, f"thinwire-pairs-{peer}")

    def call(self, work: Callable[[Comm], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Run it in the thread that waits."""
        driver = self._free[-1]
        return _Blocking(lambda: driver.run(work(driver.comm)))

    def box(self) -> Box:
        """A queue."""
        return _Queue()

    def join(self, spawned: Sequence[Spawned], seconds: float | None) -> Awaitable[bool]:
        """Wait for threads."""
        return _Blocking(lambda: _all_end(spawned, seconds))


class _Thread:
    """A coroutine in a thread."""

    def __init__(self, driver: Processes, work: Callable[[Comm], Coroutine[Any, Any, None]], name: str) -> None:
        self.future: Future[None] = Future()
        start_thread(partial(self._serve, driver, work), name)

    @property
    def ended(self) -> bool:
        return self.future.done()

    @property
    def failure(self) -> BaseException | None:
        return self.future.exception() if self.ended else None

    def _serve(self, driver: Processes, work: Callable[[Comm], Coroutine[Any, Any, None]]) -> None:
        try:
            _run(driver, work(driver.comm))
        except Exception as error:  # whatever it was, the training loop raises it
            self.future.set_exception(error)
        else:
            self.future.set_result(None)


def _run(driver: Processes, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run to the end; a failure of the network is thrown into the coroutine."""
    answer: Any = None
    broken: BrokenEdge | None = None
    try:
        while True:
            try:
                request = coroutine.send(answer) if broken is None else coroutine.throw(broken)
            except StopIteration:
                return
            answer = broken = None
            try:
                answer = request.answer() if isinstance(request, Wait) else driver.answer(request)
            except RuntimeError as cause:
                broken = BrokenEdge(str(cause))
                broken.__cause__ = cause
    finally:
        coroutine.close()


@final
class _Blocking(Wait):
    """A function that blocks, as something to await."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def answer(self) -> Any:
        return self._call()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


@final
class _Queue(Box):
    def __init__(self) -> None:
        self._words: SimpleQueue[Any] = SimpleQueue()

    def put(self, word: Any) -> None:
        self._words.put(word)

    def take(self, seconds: float | None = None) -> Awaitable[Any]:
        return _Blocking(lambda: self._get(seconds))

    def _get(self, seconds: float | None) -> Any:
        try:
            return self._words.get(timeout=seconds)
        except Empty:
            return None


def _all_end(spawned: Sequence[Any], seconds: float | None) -> bool:
    until = None if seconds is None else time.monotonic() + seconds
    for one in spawned:
        try:
            one.future.exception(None if until is None else max(0.0, until - time.monotonic()))
        except NotYet:
            return False
    return True
