"""A device like a GPU, whose work, and every copy, ends a while after the call that began it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from thinwire.core.comm import Request
from thinwire.planning.company import Company
from thinwire.planning.device import Device
from thinwire.planning.link import Sockets
from thinwire.planning.script import Ask, Part, Work

LATE = 1e-3  # seconds


@final
class Slow(Device):
    """Every bit of work, and every copy, ends a while after the call that began it."""

    queued = True
    rounds = 3

    def __init__(self) -> None:
        self.finishes = 0

    def share(self, company: Company) -> float:
        return 1.0

    def cores(self, busy: float) -> float:
        return 1.0

    def moment(self) -> float:
        return time.perf_counter()

    def between(self, start: float, end: float) -> float:
        return end - start

    def finish(self) -> None:
        self.finishes += 1
        time.sleep(LATE)

    def restored(self) -> AbstractContextManager[object]:
        return nullcontext()

    def around(self, request: Request[Any], ask: Ask, n: int) -> list[Part]:
        return [Work(LATE, 0.05), ask, Work(LATE, 0.05)]

    def sockets(self, known: Sockets) -> Sockets:
        return known
