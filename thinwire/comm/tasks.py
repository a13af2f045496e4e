"""Task and Event: what a coroutine on the clock may await besides requests. Neither takes time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, final

from thinwire.comm.answers import describe
from thinwire.core.comm import Request

T = TypeVar("T")


@final
class Task(Generic[T]):
    """A coroutine of one rank under way. `await task` gives its result, or raises what it raised."""

    def __init__(self, rank: int, coroutine: Coroutine[Any, Any, T], channel: int, name: str, daemon: bool) -> None:
        self.rank, self.channel, self.name, self.daemon = rank, channel, name, daemon
        self.coroutine = coroutine
        self.done = False
        self.error: Exception | None = None
        self.heard = False  # whether somebody was told of the error
        self.waits_in: Any = None  # a Request, Task or Event
        self.waiters: list[Task[Any]] = []
        self._result: Any = None

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done:
            yield self
        return self.result

    @property
    def result(self) -> T:
        """What the coroutine returned; raises what it raised."""
        if not self.done:
            raise RuntimeError(f"{self} has no result before its end; write await task")
        if self.error is not None:
            self.heard = True
            raise self.error
        result: T = self._result
        return result

    def end(self, result: Any = None, error: Exception | None = None) -> list[Task[Any]]:
        """The coroutine has ended; returns those that wait for it. For the clock."""
        self.done, self._result, self.error, self.waits_in = True, result, error, None
        waiters, self.waiters = self.waiters, []
        return waiters

    def state(self) -> str:
        """What the task does, in words."""
        if self.done:
            return f"{self} has returned" if self.error is None else f"{self} has failed"
        if isinstance(self.waits_in, Request):
            return f"{self} waits in {describe(self.waits_in)}"
        return f"{self} waits for {self.waits_in}"

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.name})" if self.name else f"rank {self.rank}"


@final
class Event(Generic[T]):
    """A signal between coroutines, given once: `event.set(value)`; whoever awaits the event is given the value."""

    def __init__(self, wake: Callable[[Task[Any]], None]) -> None:
        self.done = False
        self.waiters: list[Task[Any]] = []
        self._wake = wake
        self._value: Any = None

    def set(self, value: T | None = None) -> None:
        """Give the signal; whoever waits goes on."""
        if self.done:
            raise ValueError("an event is set once; write clock.event() for another")
        self.done, self._value = True, value
        for task in self.waiters:
            self._wake(task)
        self.waiters.clear()

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done:
            yield self
        value: T = self._value
        return value

    def __str__(self) -> str:
        return "an event"
