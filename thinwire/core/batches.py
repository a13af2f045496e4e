"""Batches: how many samples a rank takes in a step, where a method decides that (`Wire.batch`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from thinwire.core.config import Config


class Taken(NamedTuple):
    """What a rank has taken so far; the same on all ranks."""

    run: int = 0  # runs that have ended
    steps: int = 0  # of the present run
    samples: int = 0  # in those steps


class Batches(Config, ABC):
    """Base class. Steps come in runs, of which each minimises f(x) + theta/2 |x - y|^2; it began with y."""

    theta: float  # 0 for f alone

    @abstractmethod
    def size(self, first: int, taken: Taken) -> int:
        """Samples of the next step, where the first of a run has `first`."""

    @abstractmethod
    def budget(self, ranks: int) -> int | None:
        """Samples that a run may take per rank; None for as many as there are steps."""

    @abstractmethod
    def runs(self, ranks: int) -> int | None:
        """Runs until training ends; None for no end."""
