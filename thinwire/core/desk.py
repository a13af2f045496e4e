"""Desk: of the threads of a process that queue work on a GPU, one does so at a time.

Queueing is many short calls, and each gives the interpreter's lock away and asks for it back. Five threads that do
nothing else wake each other up at every call: on an H200's host a call that takes 0.2 ms alone then took 2 to 4 ms.
So a thread sits down at the desk to queue, and stands up while it waits for a GPU, the network or another thread.

There is one desk per process, as there is one interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DESK = threading.Lock()


class _Here(threading.local):
    sits = False


_HERE = _Here()


@contextmanager
def at_desk() -> Iterator[None]:
    """Run the block while no other thread runs such a block; inside another one, it is part of it."""
    if _HERE.sits:
        yield
        return
    with _DESK:
        _HERE.sits = True
        try:
            yield
        finally:
            _HERE.sits = False


@contextmanager
def away() -> Iterator[None]:
    """Leave the desk to others during the block, where this thread sits at it."""
    if not _HERE.sits:
        yield
        return
    _HERE.sits = False
    _DESK.release()
    try:
        yield
    finally:
        _DESK.acquire()
        _HERE.sits = True


def fetched(numbers: torch.Tensor) -> list[float]:
    """Numbers from a GPU: this thread leaves the desk, and sleeps until the current stream has made and copied them.

    >>> fetched(torch.tensor([3, 4]))
    [3, 4]
    """
    if numbers.is_cuda:
        here = numbers.to("cpu", non_blocking=True)  # torch takes pinned memory for it
        there = torch.cuda.Event(blocking=True)
        there.record(torch.cuda.current_stream(numbers.device))
        with away():
            there.synchronize()
        numbers = here
    found: list[float] = numbers.tolist()
    return found
