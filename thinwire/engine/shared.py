"""Shared: the model of one rank, changed by its training loop and by the threads that average it with others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import torch

from thinwire.engine.handover import Handover

if TYPE_CHECKING:
    from torch import Tensor


@final
class Shared:
    """A flat copy of `x` under a lock, in the precision of `x`. On a GPU, each turn follows the last on its stream.

    `version` counts the changes by others: how many there were while a gradient was computed is its staleness.

    >>> shared = Shared(torch.zeros(2))
    >>> with shared.held() as x:
    ...     x += 1
    >>> shared.add(torch.ones(2)), shared.snapshot(), shared.version
    (1, tensor([2., 2.]), 1)
    """

    def __init__(self, x: Tensor) -> None:
        self._x = x.detach().flatten().clone()
        self._lock = threading.Lock()
        self._last = Handover(self._x.device)
        self.version = 0

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._x.device

    @torch.no_grad()
    def add(self, update: Tensor) -> int:
        """Add a local step; returns the version that it was added to."""
        with self._turn():
            self._x += update
            return self.version

    def snapshot(self) -> Tensor:
        """A copy of the model."""
        return self.look()[0]

    def look(self) -> tuple[Tensor, int]:
        """A copy of the model, and its version."""
        with self._turn():
            return self._x.clone(), self.version

    @contextmanager
    def held(self) -> Iterator[Tensor]:
        """The model itself, for an exchange to change in place while nobody else does; counts as one change."""
        with self._turn(), torch.no_grad():
            yield self._x
            self.version += 1

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock:
            self._last.begin(self._x)
            try:
                yield
            finally:
                self._last = Handover(self._x.device)
