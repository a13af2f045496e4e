"""Crew: the ranks that take part in a round, where they may change from one round to the next.

An engine for membership says who they are, and makes a process group of them. This transport works on that group
alone: its lanes take turns. When a rank is lost, its connections break, and whoever talks to it gives the group up.
That breaks the connections of those who still wait for somebody else, so that all ranks give the same group up within
moments, without a store that one of them would have to host.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar, final

import torch.distributed as dist

from thinwire.comm.loose import Loose
from thinwire.comm.processes import EdgeError, Processes
from thinwire.core.clock import Clock, Now
from thinwire.core.comm import Comm
from thinwire.core.errors import PeerError
from thinwire.engine.beside import Beside
from thinwire.engine.lane import Lane, Piece
from thinwire.engine.transport import Transport, Work

T = TypeVar("T")
FAREWELL = 1.0  # seconds that threads are given to end


class Crews(ABC):
    """An engine for membership, which makes one crew after the other."""

    @abstractmethod
    def assemble(self) -> Crew:
        """Wait for a quorum. The crew is that of the last round if nobody has come or gone; PeerError if it fails."""

    @abstractmethod
    def dissolve(self, error: Exception) -> None:
        """Give the crew up, so that everybody in it does: a round has failed, and the next one needs another crew."""

    @abstractmethod
    def settled(self, rounds: int) -> None:
        """A round has been taken: so many in all."""

    @abstractmethod
    def leave(self) -> None:
        """Take part no longer."""


@final
class Nobody(Transport):
    """The transport of a rank that has not met anybody: nothing can be launched."""

    now: Now = staticmethod(time.perf_counter)
    drops = False

    def __init__(self) -> None:
        self.comm, self.timeout, self.traffic = Comm(0, 1), 0.0, []

    def launch(
        self, work: Work[T], clock: Clock | None = None, weight: int | None = None, *, aside: bool = False
    ) -> Piece[T]:
        """Our own bug."""
        raise AssertionError("nothing is launched before a crew has been assembled")

    def beside(self, edges: list[tuple[int, int]]) -> Beside:
        """Our own bug."""
        raise AssertionError("nothing is launched before a crew has been assembled")


@final
class Crew(Transport):
    """The transport of one crew. Once it has failed, whatever is launched fails at once."""

    now: Now = staticmethod(time.perf_counter)
    drops = False

    def __init__(self, group: dist.ProcessGroup, lanes: int, timeout: float) -> None:
        self.group: dist.ProcessGroup | None = group
        self.timeout = timeout
        drivers = [Processes({tuple(range(group.size())): group}, None, Loose(timeout)) for _ in range(lanes)]
        self.comm = drivers[0].comm
        self.traffic = [driver.traffic for driver in drivers]
        self._failed = ""
        self._lane = Lane(drivers, _explain, in_turn=True)

    def launch(
        self, work: Work[T], clock: Clock | None = None, weight: int | None = None, *, aside: bool = False
    ) -> Piece[T]:
        """Queue the work for the lane whose turn it is."""

        def run(driver: Processes) -> T:
            driver.gate = self._gate(driver.gate)
            try:
                return driver.run(work(driver.comm), clock)
            except EdgeError as error:
                self._failed = self._failed or str(error)
                raise

        return self._lane.launch(run, weight)

    def hand_over(self) -> None:
        """Wake the threads."""
        self._lane.hand_over()

    def beside(self, edges: list[tuple[int, int]]) -> Beside:
        """Refused: there are no edges between ranks that may change."""
        raise ValueError("ranks that may change exchange in rounds; write a method in which all ranks meet")

    def close(self) -> None:
        """Stop the threads, and let the group go: its connections close with its last reference."""
        self._lane.close()
        self._lane.join(FAREWELL)
        for driver in self._lane.drivers:
            driver.let_go()
        self.group = None

    def _gate(self, turn: Callable[[], None]) -> Callable[[], None]:
        """Wait for the turn, and stop there if the crew has failed meanwhile."""

        def gate() -> None:
            turn()
            if self._failed:
                raise EdgeError(self._failed)

        return gate


def _explain(error: Exception, work: int) -> Exception:
    """A connection that broke means that somebody is gone; everything else is this rank's own.

    The error that is raised does not refer to the first, whose traceback would keep the group and its connections.
    """
    return PeerError(f"{error}", error.peers) if isinstance(error, EdgeError) else error
