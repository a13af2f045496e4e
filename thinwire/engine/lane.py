"""Lane: work in flight. Slot k of n runs the pieces of work k, k + n, k + 2n, ..., in the order of their launch.

Every slot has a thread and process groups of its own, so that what a rank sends next on a group depends only on the
order in which work was launched, which is the same on all ranks, and never on what arrived first. While one slot
waits for the network, another encodes and a third decodes. At most n pieces of work are open.

To wake a thread takes longer than many a small bucket. Small pieces of work that follow each other closely are kept
until there is enough of them, and then handed over together. Neither the slot nor the order of any piece changes.

Where slots share their groups, they take turns: a piece of work uses the network once all those before it have ended.
It may encode before its turn. What is sent in which order then depends on the order of launch alone, as before.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, final

from thinwire.comm.processes import Processes
from thinwire.core.comm import Wait
from thinwire.core.desk import queue_as
from thinwire.engine.ending import start_thread

T = TypeVar("T")
Work = Callable[[Processes], T]
Explain = Callable[[Exception, int], Exception]  # of the piece of work that has this number
ENOUGH = 2**16  # bytes that are worth waking threads for
SOON = 1e-3  # seconds in which small pieces of work may wait for company


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
        self._value: Any = None
        self._error: BaseException | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._over:
            yield self
        if not self._over or self._error is not None:
            return self.result()
        value: T = self._value
        return value

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
        value: T = self._value
        return value

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

    With `in_turn`, drivers share their groups, and use them in the order of launch. With `aside`, the last slot has
    only what is launched aside.
    """

    def __init__(
        self,
        drivers: Sequence[Processes],
        explain: Explain,
        *,
        in_turn: bool = False,
        aside: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.drivers = list(drivers)
        self._launched = 0
        self._aside = 0  # pieces of work that the last slot has had, where that one is set aside
        self._slots = max(1, len(self.drivers) - aside)
        self._queues: list[SimpleQueue[deque[Piece[Any]] | None]] = [SimpleQueue() for _ in drivers]
        self._kept: list[tuple[int, Piece[Any]]] = []  # launched for these slots, and not handed over
        self._weight = 0  # of these
        self._now = now
        self._woken = -math.inf  # when small pieces of work were last handed over
        turns = Turns() if in_turn else None
        self._threads = [
            start_thread(partial(_serve, driver, queue, explain, turns), f"thinwire-{slot}")
            for slot, (driver, queue) in enumerate(zip(self.drivers, self._queues, strict=True))
        ]

    def launch(self, work: Work[T], weight: int | None = None, *, aside: bool = False) -> Piece[T]:
        """Queue the work for the slot whose turn it is, or for the one that is set aside.

        Work with a small `weight`, in bytes, may be kept until more follows or until `hand_over`, if other small work
        has been handed over just now. A gap before what follows makes it wait, but no longer than until `hand_over`.
        """
        piece = Piece(self._launched, work)
        slot = len(self._queues) - 1 if aside else (self._launched - self._aside) % self._slots
        self._aside += aside
        self._launched += 1
        self._kept.append((slot, piece))
        if weight is None:
            self.hand_over()
            return piece
        self._weight += weight
        now = self._now()
        if self._weight >= ENOUGH or now - self._woken >= SOON:
            self.hand_over()
            self._woken = now
        return piece

    def hand_over(self) -> None:
        """Let the threads have what has been launched."""
        kept, self._kept, self._weight, self._woken = self._kept, [], 0, -math.inf
        lots: dict[int, deque[Piece[Any]]] = {}
        for slot, piece in kept:
            if slot in lots:
                lots[slot].append(piece)
            else:
                lots[slot] = deque((piece,))
        for slot, lot in lots.items():
            self._queues[slot].put(lot)

    def launched(self) -> int:
        """How many pieces of work have been handed over."""
        return self._launched - len(self._kept)

    def close(self) -> None:
        """Let the threads end once they have done what is queued."""
        self.hand_over()
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
    queue: SimpleQueue[deque[Piece[Any]] | None],
    explain: Explain,
    turns: Turns | None,
) -> None:
    while (pieces := queue.get()) is not None:
        while pieces:
            _run(driver, pieces.popleft(), explain, turns)


def _run(driver: Processes, piece: Piece[Any], explain: Explain, turns: Turns | None) -> None:
    """Do one piece of work. Nothing of a finished round is kept alive while the thread waits for the next."""
    work, piece.work = piece.work, None
    assert work is not None
    queue_as(piece.number)
    if turns is not None:
        driver.gate = partial(turns.wait, piece.number)
    try:
        result = work(driver)
    except Exception as error:  # whatever it was, the main thread raises it
        if turns is not None:
            turns.end(piece.number)
        piece.settle(None, explain(error, piece.number))
    else:
        if turns is not None:
            turns.end(piece.number)
        piece.settle(result)
