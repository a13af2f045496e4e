"""Transport: how the work of one worker reaches the others. Real processes here, the clock in `engine/virtual.py`.

Work is a function of a `Comm` that makes a coroutine. Pieces of work are launched in the same order on all ranks and
run in lanes (`engine/lane.py`). A piece can be awaited, by a schedule or by another piece.
"""

from __future__ import annotations

import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, final

import torch.distributed as dist

from thinwire.comm import backend
from thinwire.comm.processes import Processes
from thinwire.core.clock import Clock, Now
from thinwire.core.comm import Comm, Traffic, Wait
from thinwire.engine.beside import Beside, Threads
from thinwire.engine.dropping import ALONE, Dropping
from thinwire.engine.ending import release, watch_over
from thinwire.engine.groups import Lent, Wanted, lend
from thinwire.engine.handshake import exchanged
from thinwire.engine.lane import Lane, Piece
from thinwire.engine.meeting import Meeting
from thinwire.engine.reports import Names
from thinwire.engine.store import Place
from thinwire.engine.watch import Watch

T = TypeVar("T")
Work: TypeAlias = Callable[[Comm], Coroutine[Any, Any, T]]
LOOK = 0.2  # seconds between looks at the alarm while waiting
LATE = 1.0  # seconds between looks at who has left
FAREWELL = 1.0  # seconds that threads are given to end


class Transport(ABC):
    """What the runner and the schedules of one worker need of a network."""

    comm: Comm
    timeout: float
    drops: bool  # whether it may go on without a neighbour
    traffic: list[Traffic]  # what has been sent
    now: Now  # the time in seconds

    def name(self, rank: int) -> int:
        """The number by which users know a rank."""
        return rank

    @abstractmethod
    def launch(
        self, work: Work[T], clock: Clock | None = None, weight: int | None = None, *, aside: bool = False
    ) -> Awaitable[T]:
        """Run `work` when its turn comes, and tell `clock` the time on the wire.

        Work that has a `weight`, in bytes, may be kept here until `hand_over` or until more of it has come together.
        Where results may arrive in the next forward pass, work set `aside` does not queue behind buckets.
        """

    def hand_over(self) -> None:  # noqa: B027  (nothing need be kept)
        """Let everything run that has been launched."""

    def explain(self, error: Exception) -> Exception:
        """What the user should see of an error of this worker, which the others are told of where they can be."""
        return error

    def check(self) -> None:  # noqa: B027  (on the clock nobody is lost)
        """Raise PeerError if another worker has raised the alarm; for schedules that wait for nobody."""

    def report(self) -> dict[str, float]:
        """Figures of the network for `stats`, beside what was sent."""
        return {}

    @abstractmethod
    def beside(self, edges: list[tuple[int, int]]) -> Beside:
        """A place for coroutines that run beside the lanes, each on an edge of its own; every rank calls it."""


@final
class ProcessTransport(Transport):
    """Lanes of process groups, a watch over the other ranks, and a farewell when the interpreter ends."""

    now: Now = staticmethod(time.perf_counter)

    def __init__(
        self,
        group: dist.ProcessGroup,
        wanted: Wanted,
        *,
        edges: Sequence[tuple[int, int]] | None = None,
        quorum: int = ALONE,
        goes_on: bool = False,
    ) -> None:
        """With `goes_on`, ranks that are lost are dealt with elsewhere.

        With `edges`, those of the graph, neighbours are dropped that are lost, as long as `quorum` ranks are left.
        """
        drops = edges is not None
        self.group, self.timeout, self.drops = group, wanted.timeout, drops
        self.waits = Waits()
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        names = Names([dist.get_global_rank(group, member) for member in range(size)], dist.get_world_size())
        self.watch = Watch(Place(group), rank, size, names, goes_on=drops or goes_on)
        self.meeting = Meeting(self.watch, wanted.timeout, group)
        self._lent: list[Lent] = []
        self._beside: Threads | None = None
        self._dropping = None if edges is None else Dropping(self.watch, edges, quorum, wanted.timeout)
        try:
            made = self._borrow(wanted).drivers(self._dropping)
        except BaseException as error:
            self.watch.leave(f"it failed in attach: {error}", failed=True)
            self.watch.stop()
            raise
        self.comm = made[0].comm
        self.traffic = [driver.traffic for driver in made]
        self.lane = Lane(made, self.watch.explain, in_turn=backend.named(wanted.backend).in_turn, aside=wanted.aside)
        self.watch.launched = self.lane.launched
        # A wire that is forgotten together with its model and its optimizer leaves no threads behind.
        self._forgotten = weakref.finalize(self, _stop, self.lane, self.watch)
        self._forgotten.atexit = False  # `leave` is called at exit
        watch_over(self)

    def name(self, rank: int) -> int:
        """That of the whole world, also where some ranks exchange alone."""
        return self.watch.names(rank)

    def launch(
        self, work: Work[T], clock: Clock | None = None, weight: int | None = None, *, aside: bool = False
    ) -> Piece[T]:
        """Queue the work for the lane whose turn it is."""
        return self.lane.launch(lambda driver: driver.run(work(driver.comm), clock), weight, aside=aside)

    def hand_over(self) -> None:
        """Wake the threads."""
        self.lane.hand_over()

    def introduce(self) -> None:
        """Let the ranks know where to ask each other what they do; every rank calls it."""
        liveness = self.watch.listen(self.timeout)
        places = self.call(lambda comm: exchanged(comm, liveness.place()))
        liveness.introduce({rank: place for rank, place in enumerate(places) if rank != self.comm.rank})

    def explain(self, error: Exception) -> Exception:
        """Raise the alarm, as an error in a lane does."""
        return self.watch.explain(error)

    def check(self) -> None:
        """Look at the alarm, or at who is left."""
        if self._dropping is not None:
            self._dropping.check()
        elif self.watch.alarmed.is_set():
            raise self.watch.verdict()

    def report(self) -> dict[str, float]:
        """How many neighbours have been dropped, where they may be."""
        return {} if self._dropping is None else {"ranks_dropped": len(self._dropping.gone)}

    def beside(self, edges: list[tuple[int, int]]) -> Threads:
        """A thread for each coroutine, and a process group for each edge."""
        lent = self._borrow(Wanted(1, tuple(edges), self.timeout, "gloo"))
        mine = sum(self.comm.rank in edge for edge in edges)
        self._beside = Threads(lent, self.comm.gone if self.drops else None, self.timeout, mine)
        self._beside.dropped = None if self._dropping is None else self._dropping.drop
        self.traffic += self._beside.traffic
        if self.watch.liveness is not None:
            self.watch.liveness.ask(on=True)  # whoever is there may wait for a word at any time
        return self._beside

    def call(self, work: Work[T]) -> T:
        """Run `work` in its turn, and wait for it."""
        return self.wait(self.launch(work))

    def direct(self, work: Callable[[Processes], T]) -> T:
        """Run a function of a lane's driver in its turn, and wait for it."""

        def direct(driver: Processes) -> T:
            driver.gate()
            return work(driver)

        return self.wait(self.lane.launch(direct))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run what the training loop's own thread waits for: pieces of work, and what runs beside them."""
        return blocking(coroutine, self._answer)

    def _answer(self, request: Any) -> Any:
        with self.waits:
            return self.wait(request) if isinstance(request, Piece) else answer(request)

    def wait(self, piece: Piece[T]) -> T:
        """Wait for the result; PeerError soon after a rank raises the alarm or leaves, whatever is waited for."""
        if not piece.done():
            self.lane.hand_over()
        if self._dropping is not None:
            self._dropping.check()
        if piece.ended(LOOK):
            return piece.result()
        looked = time.monotonic()
        with self.watch.waits_for(piece.number) as look:
            while not piece.ended(LOOK):
                if self.watch.alarmed.is_set():
                    raise self.watch.verdict()
                if not self.drops and time.monotonic() - looked > LATE:
                    looked = time.monotonic()
                    self.watch.look_out(piece.number)
                if self._dropping is not None:
                    self._dropping.check()
                look()
        return piece.result()

    def close(self, *, failed: bool = False, why: str = "") -> None:
        """Stop the threads, and give the process groups back unless messages may be left on them."""
        release(self)
        self._forgotten.detach()
        self.watch.leave(why, failed=failed)
        self.lane.close()
        self.watch.stop()
        self.watch.join(FAREWELL)
        if not failed and not self.watch.alarmed.is_set() and self.lane.join(FAREWELL):
            for lent in self._lent:
                lent.give_back()
        self._lent = []

    def leave(self, why: str) -> None:
        """Stop because the interpreter ends, without waiting for anybody unless neighbours expect a farewell."""
        raised = getattr(sys, "last_value", None)  # what ended the script
        if raised is not None:
            why = f"it raised {type(raised).__name__}: {raised}"
        elif self._beside is not None and not self.watch.over:
            self._say_farewell(self._beside)
        self.watch.leave(why, failed=raised is not None)
        _stop(self.lane, self.watch)
        self.lane.join(FAREWELL)
        self.watch.join(FAREWELL)

    def _say_farewell(self, beside: Threads) -> None:
        if beside.farewell is not None:
            with suppress(Exception):  # there is nobody left to tell
                self.run(beside.farewell())

    def _borrow(self, wanted: Wanted) -> Lent:
        """Process groups that no other wire uses, until `close`; every rank calls it."""
        self._lent.append(lend(self.group, wanted, self.meeting))
        return self._lent[-1]


@final
class Waits:
    """For how many seconds the training loop's own thread has waited, in `with` blocks."""

    def __init__(self) -> None:
        self.seconds = self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since


def answer(request: Any) -> Any:
    """Wait for it here."""
    if not isinstance(request, Wait):
        raise TypeError(f"awaited {request!r}; a schedule awaits events, pieces of work and boxes")
    return request.answer()


def blocking(coroutine: Coroutine[Any, Any, T], answer: Callable[[Any], Any] = answer) -> T:
    """Run what the training loop's own thread waits for; `answer` waits for what it awaits."""
    found: Any = None
    failed: Exception | None = None
    try:
        while True:
            try:
                request = coroutine.send(found) if failed is None else coroutine.throw(failed)
            except StopIteration as done:
                result: T = done.value
                return result
            found = failed = None
            try:
                found = answer(request)
            except Exception as error:
                failed = error  # for whoever awaits it
    finally:
        coroutine.close()


def _stop(lane: Lane, watch: Watch) -> None:
    lane.close()
    watch.stop()
