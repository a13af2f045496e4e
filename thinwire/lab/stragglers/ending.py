"""Ending: when a worker takes no more steps.

A worker of an asynchronous method ends by itself. Where workers wait for each other all must take equally many steps:
rank 0 names the last one, so far ahead that nobody can have begun it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import thinwire as tw


@final
class Ending:
    """`tell` and `told` carry a number from rank 0 to all others."""

    def __init__(
        self, method: tw.Method, workers: int, tell: Callable[[int], None], told: Callable[[], int | None]
    ) -> None:
        self._tell, self._told = tell, told
        self._ahead: int | None = None  # of rank 0, at most
        if not method.exchange.asynchronous:
            hops = workers if method.exchange.scope == "neighbours" else 1
            self._ahead = method.sync.every * (hops + 1) + (method.sync.staleness or 0)

    def over(self, rank: int, steps: int, due: bool) -> bool:
        """Whether a worker ends that has taken so many steps; `due` says that the run should end."""
        if self._ahead is None:
            return due
        last = self._told()
        if last is None and due and rank == 0:
            last = steps + self._ahead
            self._tell(last)
        return last is not None and steps >= last
