"""The transport on the clock: lanes are channels, pieces of work are tasks, and waiting takes virtual time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, TypeVar, final

from thinwire.comm.clock import VirtualClock
from thinwire.comm.tasks import Event, Task
from thinwire.core.clock import Clock
from thinwire.core.comm import Comm, Request
from thinwire.engine.beside import Beside, Box, Spawned
from thinwire.engine.transport import Transport, Work

T = TypeVar("T")


@final
class ClockTransport(Transport):
    """Worker `rank` of a clock, with so many lanes."""

    def __init__(self, clock: VirtualClock, rank: int, lanes: int) -> None:
        self.clock, self.rank = clock, rank
        self.comm, self.timeout, self.drops = clock.comm(rank), math.inf, False
        self.traffic = [clock.traffic[rank]]
        self.now = lambda: clock.now
        self._last: list[Task[Any] | None] = [None] * lanes
        self._launched = 0

    def launch(
        self, work: Work[T], clock: Clock | None = None, weight: int | None = None, *, aside: bool = False
    ) -> Task[T]:
        """A task in the channel of the lane whose turn it is; it starts when the one before it has ended."""
        if aside:
            return self.clock.spawn(self.rank, work(self.comm), channel=2 + len(self._last))
        lane = self._launched % len(self._last)
        self._launched += 1
        made = self.clock.spawn(self.rank, self._in_turn(self._last[lane], work, clock), channel=1 + lane)
        self._last[lane] = made
        return made

    def beside(self, edges: list[tuple[int, int]]) -> Tasks:
        """Tasks in a channel of their own: messages are told apart by the pair of ranks."""
        return Tasks(self.clock, self.rank, channel=1 + len(self._last))

    async def _in_turn(self, earlier: Task[Any] | None, work: Work[T], clock: Clock | None) -> T:
        if earlier is not None and not earlier.done:
            await earlier
        running = work(self.comm)
        return await (running if clock is None else _timed(running, clock))


@final
class Tasks(Beside):
    """Tasks on the clock. Nobody hangs there, so that nobody need show that it is alive."""

    beat = None
    gone = None

    def __init__(self, clock: VirtualClock, rank: int, channel: int) -> None:
        self._clock, self._rank, self._channel = clock, rank, channel
        self.comm = clock.comm(rank)
        self.now = lambda: clock.now

    def spawn(self, peer: int, work: Callable[[Comm], Coroutine[Any, Any, None]]) -> Spawned:
        """A task of this worker."""
        name = f"edge to {peer}"
        return _Spawned(self._clock.spawn(self._rank, work(self.comm), self._channel, name, daemon=True))

    def call(self, work: Callable[[Comm], Coroutine[Any, Any, T]]) -> Task[T]:
        """A task to wait for."""
        return self._clock.spawn(self._rank, work(self.comm), self._channel)

    def box(self) -> Box:
        """Words in the memory of this worker."""
        return _Words(self._clock)

    async def join(self, spawned: Sequence[Spawned], seconds: float | None) -> bool:
        """Wait for tasks, however long it takes."""
        for one in spawned:
            assert isinstance(one, _Spawned)
            await one.task
        return True


@final
class _Spawned:
    def __init__(self, task: Task[None]) -> None:
        self.task = task

    @property
    def ended(self) -> bool:
        return self.task.done

    @property
    def failure(self) -> BaseException | None:
        return self.task.error


@final
class _Words(Box):
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._words: deque[Any] = deque()
        self._waiting: Event[Any] | None = None

    def put(self, word: Any) -> None:
        self._words.append(word)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set()

    async def take(self, seconds: float | None = None) -> Any:
        while not self._words:
            self._waiting = self._waiting or self._clock.event()
            await self._waiting
        return self._words.popleft()


@coroutine
def _timed(running: Coroutine[Any, Any, T], clock: Clock) -> Generator[Any, Any, T]:
    """Pass requests on, and tell `clock` the time between a request and its answer."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            request = running.send(answer) if failed is None else running.throw(failed)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = failed = None
        try:
            if isinstance(request, Request):
                with clock.span("wire"):
                    answer = yield request
            else:
                answer = yield request
        except BaseException as error:
            failed = error
