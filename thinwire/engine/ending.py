"""Endings: a script may end, raise or call sys.exit while its wires are open, or while ranks still meet.

When the interpreter ends, every wire that is still open tells the others that this rank leaves, and its threads are
asked to stop. A thread that waits for the network cannot be asked; it is left to sleep (see ending.cpp), because it
would otherwise abort the process when the network wakes it. That holds for every thread of the engine from its first
moment on, so all of them are started here.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import torch

from thinwire.kernels.compiled import uncompiled


class Leaving(Protocol):
    """Something that is told when the interpreter ends."""

    def leave(self, why: str) -> None:
        """Say farewell, and stop what runs, within a second or two."""


_open: weakref.WeakSet[Leaving] = weakref.WeakSet()
_process: list[int] = []  # the process whose end is awaited: a fork has no wires of its own


def watch_over(one: Leaving) -> None:
    """Call `one.leave` when the interpreter ends, if `one` is still there and was not released."""
    _await_the_end()
    _open.add(one)


def release(one: Leaving) -> None:
    """Forget `one`, which has ended by itself."""
    _open.discard(one)


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Run `work` in a daemon thread with the GPU of this one; it may wait for the network when the script ends."""
    _await_the_end()
    device = torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None

    def run() -> None:
        if device is not None:
            torch.cuda.set_device(device)  # each thread has its own
        work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _await_the_end() -> None:
    if not _process:
        atexit.register(_at_exit)
    _process[:] = [os.getpid()]


def _at_exit() -> None:
    if _process == [os.getpid()]:
        for one in list(_open):
            one.leave("its script has ended")
    if uncompiled() is None:
        _let_late_threads_sleep()


def _let_late_threads_sleep() -> None:
    from thinwire.engine import _ending  # noqa: PLC0415  (compiled: importing thinwire must work without it)

    _ending.let_late_threads_sleep()
