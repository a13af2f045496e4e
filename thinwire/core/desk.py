"""Desk: of the threads of a process that queue work on a GPU, one does so at a time.

Queueing is many short calls, and each gives the interpreter's lock away and asks for it back. Several threads that
do nothing else wake each other up at every call, and that takes longer than the calls.
So a thread sits down at the desk to queue, and stands up while it waits for a GPU, the network or another thread.

Whoever has the lowest `number` is next: the order in which work was launched, which is the same on all ranks, so that
they queue the same work at the same time. There is one desk per process, as there is one interpreter's lock.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import final

import torch


@final
class Desk:
    """A lock that is handed to the waiting thread with the lowest number; among equals to the first."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: list[tuple[int, int, threading.Lock]] = []
        self._count = itertools.count()

    def sit(self, number: int = 0) -> None:
        """Return when it is this thread's."""
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            heapq.heappush(self._waiting, (number, next(self._count), turn))
        turn.acquire()  # whoever stands up releases it

    def stand(self) -> None:
        """Hand it to the next."""
        with self._mutex:
            if self._waiting:
                heapq.heappop(self._waiting)[2].release()
            else:
                self._taken = False


class _Here(threading.local):
    sits = False
    number = 0


NOTHING = nullcontext()  # one for all blocks around which nothing is to be done, as where nothing is on a GPU
_DESK = Desk()
_HERE = _Here()


def queue_as(number: int) -> None:
    """What this thread does next is the piece of work with this number."""
    _HERE.number = number


@contextmanager
def at_desk() -> Iterator[None]:
    """Run the block while no other thread runs such a block; inside another one, it is part of it."""
    if _HERE.sits:
        yield
        return
    _sit()
    try:
        yield
    finally:
        _stand()


def seated() -> bool:
    """Whether this thread sits at the desk."""
    return _HERE.sits


def away() -> AbstractContextManager[None]:
    """Leave the desk to others during the block, where this thread sits at it."""
    return _left() if _HERE.sits else NOTHING


@contextmanager
def _left() -> Iterator[None]:
    _stand()
    try:
        yield
    finally:
        _sit()


def fetched(numbers: torch.Tensor) -> list[float]:
    """`brought`, as a list.

    >>> fetched(torch.tensor([3, 4]))
    [3, 4]
    """
    found: list[float] = brought(numbers).tolist()
    return found


def brought(t: torch.Tensor) -> torch.Tensor:
    """What is on a GPU: this thread leaves the desk, and sleeps until the current stream has made and copied it."""
    if not t.is_cuda:
        return t
    here = t.to("cpu", non_blocking=True)  # torch takes pinned memory for it
    there = torch.cuda.Event(blocking=True)
    there.record(torch.cuda.current_stream(t.device))
    with away():
        there.synchronize()
    return here


def _sit() -> None:
    _DESK.sit(_HERE.number)
    _HERE.sits = True


def _stand() -> None:
    _HERE.sits = False
    _DESK.stand()
