"""Lane: work in flight. Slot k of n runs the pieces of work k, k + n, k + 2n, ..., in the order of their launch.

Every slot has a thread and process groups of its own, so that what a rank sends next on a group depends only on the
order in which work was launched, which is the same on all ranks, and never on what arrived first. While one slot
waits for the network, another encodes and a third decodes. At most n pieces of work are open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar, final

from thinwire.comm.processes import Processes

T = TypeVar("T")
Work = Callable[[Processes], T]
Job = tuple["Future[Any]", "Work[Any]"]


@final
class Lane:
    """Threads that run `work(driver)`, one a driver. `explain` turns an error into what the user should see."""

    def __init__(self, drivers: Sequence[Processes], explain: Callable[[Exception], Exception]) -> None:
        self.drivers = list(drivers)
        self._explain = explain
        self._launched = 0
        self._queues: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in drivers]
        for slot, driver in enumerate(self.drivers):
            threading.Thread(
                target=self._serve, args=(driver, self._queues[slot]), name=f"thinwire-{slot}", daemon=True
            ).start()

    def launch(self, work: Work[T]) -> Future[T]:
        """Queue the work for the slot whose turn it is."""
        future: Future[T] = Future()
        self._queues[self._launched % len(self._queues)].put((future, work))
        self._launched += 1
        return future

    def close(self) -> None:
        """Let the threads end when they have done what is queued."""
        for queue in self._queues:
            queue.put(None)

    def _serve(self, driver: Processes, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            future, work = job
            try:
                future.set_result(work(driver))
            except Exception as error:  # whatever it was, the main thread raises it
                future.set_exception(self._explain(error))
            del job, future, work  # nothing of a finished round is kept alive while the thread waits
