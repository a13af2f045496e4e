"""Agenda: what happens when. Events come in the order of their time, and those of one time in the order of making."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, final

from thinwire.comm.tasks import Task


@final
class Agenda:
    """Tasks that go on now, each with the answer it waited for, and calls of later times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: deque[tuple[Task[Any], Any]] = deque()
        self._later: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []  # a heap
        self._made = 0

    def wake(self, task: Task[Any], answer: Any = None) -> None:
        """Let a task go on now."""
        self.ready.append((task, answer))

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Call something at a time, or at once if the time has come."""
        if time <= self.now:
            call(*args)
        else:
            self._made += 1
            heappush(self._later, (time, self._made, call, args))

    def run(self, advance: Callable[[Task[Any], Any], None]) -> None:
        """Advance tasks and make calls until none is left."""
        ready, later = self.ready, self._later
        while True:
            if later and later[0][0] <= self.now:  # made before the time was now, and so before all that is ready
                _, _, call, args = heappop(later)
                call(*args)
            elif ready:
                advance(*ready.popleft())
            elif later:
                self.now = later[0][0]
            else:
                return

    def clear(self) -> None:
        """Forget everything."""
        self.ready.clear()
        self._later.clear()
