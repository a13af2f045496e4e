"""VirtualClock: N workers in one process on virtual time, each with as many coroutines as it likes.

Requests are answered with real tensors, and when a real network would answer them: thinwire.comm.network says what
messages cost, thinwire.comm.stragglers how long computations take. A sum is a ring that begins when the last rank has
asked; a gather and an all-to-all are messages to each peer, followed by their totals per rank. Nothing depends on the
machine: the same seed gives the same run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, final

from thinwire.comm.agenda import Agenda
from thinwire.comm.network import Interfaces, Network
from thinwire.comm.stragglers import Stragglers
from thinwire.comm.switch import WAITS, Switch
from thinwire.comm.tasks import Event, Task
from thinwire.core.comm import Comm, ComputeRequest, NowRequest, Request, SleepRequest, Traffic
from thinwire.core.errors import DeadlockError, PeerError

T = TypeVar("T")


@final
class VirtualClock:
    """`size` workers on a network; `stragglers` makes some of their computations longer, as `seed` decides.

    Coroutines are spawned, and `run` runs them until nothing is left to do. Those of one worker compute side by side,
    and share the interfaces of its host. Without `numbers` its messages have sizes alone.

    >>> import torch
    >>> clock = VirtualClock(2, Network("1gbit", "1ms"))
    >>> async def program(comm):
    ...     await comm.compute(0.5)
    ...     await comm.all_reduce(torch.ones(250_000))
    ...     return await comm.now()
    >>> tasks = [clock.spawn(rank, program(clock.comm(rank))) for rank in range(2)]
    >>> clock.run()
    >>> round(tasks[0].result, 6)  # half a second, and twice the latency and half of a megabyte
    0.51
    """

    def __init__(
        self,
        size: int,
        network: Network | None = None,
        stragglers: Stragglers | None = None,
        seed: int = 0,
        *,
        numbers: bool = True,
    ) -> None:
        if size < 1:
            raise ValueError(f"a clock needs at least one worker; got size={size}")
        if stragglers is not None:
            stragglers.check(size)
        self.size, self.stragglers, self.seed = size, stragglers, seed
        self.network = Network() if network is None else network
        self.traffic = [Traffic() for _ in range(size)]
        """What each rank has sent, in all channels."""
        self._agenda = Agenda()
        self._switch = Switch(self._agenda, Interfaces(self.network, size), self.traffic, numbers=numbers)
        self._alive: dict[Task[Any], None] = {}  # in the order in which they were spawned
        self._failed: list[Task[Any]] = []
        self._returned: set[int] = set()  # ranks of which a task has ended
        self._turns = [0] * size
        self.dead: dict[int, float] = {}  # ranks that have failed, and when
        self._handlers: dict[type, Callable[[Task[Any], Any], Any]] = {
            **self._switch.handlers,
            NowRequest: lambda task, request: self._agenda.now,
            SleepRequest: self._sleep,
            ComputeRequest: self._compute,
            Task: self._join,
            Event: self._join,
        }

    @property
    def now(self) -> float:
        """Virtual seconds since the clock was made."""
        return self._agenda.now

    def comm(self, rank: int, channel: int = 0) -> Comm:
        """A rank's view of the network. Requests of one channel meet only those of the same channel.

        A Comm of channel 0 speaks in the channel of the task that awaits its requests.
        """
        self._check(rank)
        return Comm(rank, self.size, self.traffic[rank], self._switch.everybody, channel=channel)

    def spawn(
        self, rank: int, coroutine: Coroutine[Any, Any, T], channel: int = 0, name: str = "", daemon: bool = False
    ) -> Task[T]:
        """Start a coroutine of a rank, now. A daemon may be left waiting when everything else has ended."""
        self._check(rank)
        task = Task(rank, coroutine, channel, name, daemon)
        self._alive[task] = None
        self._agenda.wake(task)
        return task

    def fail(self, rank: int, time: float, *, drops: bool = False) -> None:
        """Let a rank die at a time: its coroutines are closed, and it answers nobody.

        With `drops`, swaps that wait for it go on without it. Whoever waits for it in anything else waits for ever,
        and `run` raises PeerError when nothing is left to do.
        """
        self.check_failure(rank, time)
        self._agenda.at(time, self._die, rank, drops)

    def check_failure(self, rank: int, time: float) -> None:
        """Refuse a rank that there is not, and a time that never comes."""
        self._check(rank)
        if not 0 <= time < math.inf:
            raise ValueError(f"rank {rank} cannot die at {time} s; write a number of seconds that is not negative")

    def _die(self, rank: int, drops: bool) -> None:
        self.dead[rank] = self.now
        for task in [task for task in self._alive if task.rank == rank]:
            del self._alive[task]
            task.coroutine.close()
        if drops:
            self._switch.forget(rank)

    def event(self) -> Event[Any]:
        """A signal between coroutines, given once."""
        return Event(self._agenda.wake)

    def run(self) -> None:
        """Run until nothing is left to do.

        What a task raised is raised here, unless somebody awaited the task. After an error every coroutine is closed;
        otherwise daemons wait on, and `run` may be called again when there is more to do.
        """
        try:
            self._agenda.run(self._advance)
            self._judge()
        except BaseException:
            for task in self._alive:
                task.coroutine.close()
            self._alive.clear()
            self._agenda.clear()
            raise

    def _judge(self) -> None:
        """Nothing is left to do: raise what went wrong."""
        failed, self._failed = self._failed, []
        for task in failed:
            if task.error is not None and not task.heard:
                raise task.error
        if all(task.daemon for task in self._alive):
            return
        waiting = sorted(self._alive, key=lambda task: task.rank)
        lines = [task.state() for task in waiting]
        if self.dead:
            who = " and ".join(f"rank {rank} died at {time:.9g} s" for rank, time in sorted(self.dead.items()))
            stuck = {task.rank: task.state() for task in reversed(waiting) if isinstance(task.waits_in, Request)}
            raise PeerError(f"{who}; " + "; ".join(sorted(stuck.values())[:3]), tuple(sorted(self.dead)))
        lines += [f"rank {rank} has returned" for rank in sorted(self._returned - {task.rank for task in waiting})]
        raise DeadlockError(f"deadlock at {self.now:.9g} s: " + "; ".join(lines))

    def _advance(self, task: Task[Any], answer: Any) -> None:
        """Let a task run until it waits or ends."""
        if task not in self._alive:  # its rank has died
            return
        send = task.coroutine.send
        while answer is not WAITS:
            try:
                request = send(answer)
            except StopIteration as done:
                self._end(task, done.value, None)
                return
            except Exception as error:
                if not any(note.startswith("raised on virtual rank") for note in getattr(error, "__notes__", ())):
                    error.add_note(f"raised on virtual rank {task.rank}")
                self._failed.append(task)
                self._end(task, None, error)
                return
            task.waits_in = request
            handler = self._handlers.get(type(request))
            if handler is None:
                raise TypeError(
                    f"rank {task.rank} awaited {request!r}; under a thinwire driver only requests of its Comm can be "
                    "awaited (there is no asyncio loop here)"
                )
            answer = handler(task, request)

    def _end(self, task: Task[Any], result: Any, error: Exception | None) -> None:
        del self._alive[task]
        self._returned.add(task.rank)
        for waiter in task.end(result, error):
            self._agenda.wake(waiter)

    def _join(self, task: Task[Any], other: Task[Any] | Event[Any]) -> object:
        other.waiters.append(task)
        return WAITS

    def _sleep(self, task: Task[Any], request: SleepRequest) -> object:
        self._agenda.at(self.now + request.seconds, self._agenda.wake, task)
        return WAITS

    def _compute(self, task: Task[Any], request: ComputeRequest) -> object:
        turn = self._turns[task.rank]
        self._turns[task.rank] += 1
        factor = 1.0 if self.stragglers is None else self.stragglers.factor(task.rank, turn, self.seed)
        self._agenda.at(self.now + request.seconds * factor, self._agenda.wake, task)
        return WAITS

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} among {self.size}; they are numbered from 0")
