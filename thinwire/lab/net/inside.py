"""Move into a host, which is the first thing that a rank does."""

from __future__ import annotations

import ctypes
import os

from thinwire.lab.net.reaper import NAMESPACES
from thinwire.lab.net.shaping import DEVICE

CLONE_NEWNET = 0x40000000


def enter(namespace: str) -> None:
    """Put this thread, and all that it starts from now on, into a network namespace, and tell gloo its interface.

    The kernel moves one thread, not a process, so call this while there is only one. Python has os.setns from 3.12
    on.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.open(NAMESPACES / namespace, os.O_RDONLY)
    try:
        if libc.setns(place, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter the namespace: {os.strerror(number)}", namespace)
    finally:
        os.close(place)
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
