"""Lane: work in flight. Slot k of n runs the pieces of work k, k + n, k + 2n, ..., in the order of their launch.

Every slot has a thread and process groups of its own, so that what a rank sends next on a group depends only on the
order in which work was launched, which is the same on all ranks, and never on what arrived first. While one slot
waits for the network, another encodes and a third decodes. At most n pieces of work are open.

Where slots share their groups, they take turns: a piece of work uses the network once all those before it have ended.
It may encode before its turn. What is sent in which order then depends on the order of launch alone, as before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast, final

import torch

from thinwire.comm.processes import Processes
from thinwire.core.comm import Wait
from thinwire.core.desk import queue_as

T = TypeVar("T")
Work = Callable[[Processes], T]
Explain = Callable[[Exception], Exception]


@final
class Piece(Wait, Generic[T]):
    """One piece of work; `number` counts them in the order of launch. It can be awaited under a thinwire driver.

    A future with one lock and no callbacks: several are made per bucket, and a `concurrent.futures.Future` takes
    longer to make than the rest of a launch.
    """

    __slots__ = ("_error", "_gate", "_over", "_value", "number", "work")

    def __init__(self, number: int, work: Work[T]) -> None:
        self.number = number
        self.work: Work[T] | None = work
        self._gate = threading.Lock()
        self._gate.acquire()  # whoever waits gets it once the work is done, and passes it on
        self._over = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._over:
            yield self
        return self.result()

    def answer(self) -> None:
        """Wait until it is done: what a driver does with a piece that a coroutine awaits."""
        self.ended()

    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._over

    def ended(self, timeout: float = -1) -> bool:
        """Wait until it is done, at most `timeout` seconds; returns whether it is."""
        if not self._over and self._gate.acquire(timeout=timeout):
            self._gate.release()
        return self._over

    def result(self) -> T:
        """Wait for the result, or for the error, which is raised."""
        self.ended()
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def settle(self, value: T | None, error: BaseException | None = None) -> None:
        """Let everybody go on who waits for it."""
        self._value, self._error, self._over = value, error, True
        self._gate.release()


@final
class Turns:
    """Whose turn it is: that of the first piece of work that has not ended."""

    def __init__(self) -> None:
        self._first = 0
        self._ended: set[int] = set()  # later ones
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        """Return when all pieces of work before this one have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._first >= number)

    def end(self, number: int) -> None:
        """Note that a piece of work has ended."""
        with self._changed:
            self._ended.add(number)
            while self._first in self._ended:
                self._ended.remove(self._first)
                self._first += 1
            self._changed.notify_all()


@final
class Lane:
    """Threads that run `work(driver)`, one per driver. `explain` turns an error into what the user should see.

    With `in_turn`, drivers share their groups, and use them in the order of launch.
    """

    def __init__(self, drivers: Sequence[Processes], explain: Explain, *, in_turn: bool = False) -> None:
        self.drivers = list(drivers)
        self._launched = 0
        self._queues: list[SimpleQueue[Piece[Any] | None]] = [SimpleQueue() for _ in drivers]
        turns = Turns() if in_turn else None
        serve = partial(_serve, explain=explain, turns=turns, device=own_device())
        self._threads = [
            threading.Thread(target=serve, args=(driver, queue), name=f"thinwire-{slot}", daemon=True)
            for slot, (driver, queue) in enumerate(zip(self.drivers, self._queues, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def launch(self, work: Work[T]) -> Piece[T]:
        """Queue the work for the slot whose turn it is."""
        piece = Piece(self._launched, work)
        self._queues[self._launched % len(self._queues)].put(piece)
        self._launched += 1
        return piece

    def launched(self) -> int:
        """How many pieces of work have been launched."""
        return self._launched

    def close(self) -> None:
        """Let the threads end once they have done what is queued."""
        for queue in self._queues:
            queue.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the threads of a closed lane; returns whether all have ended."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _serve(
    driver: Processes,
    queue: SimpleQueue[Piece[Any] | None],
    explain: Explain,
    turns: Turns | None,
    device: int | None,
) -> None:
    if device is not None:
        torch.cuda.set_device(device)  # each thread has its own
    while (piece := queue.get()) is not None:
        work, piece.work = piece.work, None
        assert work is not None
        queue_as(piece.number)
        if turns is not None:
            driver.gate = partial(turns.wait, piece.number)
        try:
            result = work(driver)
        except Exception as error:  # whatever it was, the main thread raises it
            _end(turns, piece)
            piece.settle(None, explain(error))
        else:
            _end(turns, piece)
            piece.settle(result)
            del result
        del piece, work  # nothing of a finished round is kept alive while the thread waits


def _end(turns: Turns | None, piece: Piece[Any]) -> None:
    if turns is not None:
        turns.end(piece.number)


def own_device() -> int | None:
    """The GPU of this thread, if it uses one."""
    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
