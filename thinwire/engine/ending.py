"""Endings: a script may end, raise or call sys.exit while its wires are open.

When the interpreter ends, every wire that is still open tells the others that this rank leaves, and its threads are
asked to stop. A thread that waits for the network cannot be asked; it is left to sleep (see ending.cpp), because it
would otherwise abort the process when the network wakes it.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol

from thinwire.kernels.compiled import uncompiled


class Leaving(Protocol):
    """Something that is told when the interpreter ends."""

    def leave(self, why: str) -> None:
        """Say farewell, and stop what runs, within a second or two."""


_open: weakref.WeakSet[Leaving] = weakref.WeakSet()
_process: list[int] = []  # the process whose end is awaited: a fork has no wires of its own


def watch_over(one: Leaving) -> None:
    """Call `one.leave` when the interpreter ends, if `one` is still there and was not released."""
    if not _process:
        atexit.register(_at_exit)
    _process[:] = [os.getpid()]
    _open.add(one)


def release(one: Leaving) -> None:
    """Forget `one`, which has ended by itself."""
    _open.discard(one)


def _at_exit() -> None:
    if _process == [os.getpid()]:
        for one in list(_open):
            one.leave("its script has ended")
    if uncompiled() is None:
        _let_late_threads_sleep()


def _let_late_threads_sleep() -> None:
    from thinwire.engine import _ending  # noqa: PLC0415  (compiled: importing thinwire must work without it)

    _ending.let_late_threads_sleep()
