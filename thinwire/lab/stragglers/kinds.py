"""Kinds of stragglers that are raced, by name: one worker that is always slow, or stalls that may hit anybody."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from thinwire.core.registry import Registry
from thinwire.sim import Constant, Stragglers, Transient


class Kind(ABC):
    """What it makes of a number of workers."""

    @abstractmethod
    def of(self, workers: int) -> Stragglers:
        """How much longer each computation takes."""

    @abstractmethod
    def __str__(self) -> str:
        """In words."""


@final
@dataclass(frozen=True)
class Slow(Kind):
    """The last worker takes `times` as long in every step."""

    times: float = 5.0

    def __post_init__(self) -> None:
        if self.times <= 0:
            raise ValueError(f"slow:times={self.times:g} takes no time; write --stragglers slow:times=5")

    def of(self, workers: int) -> Stragglers:
        """Rank 0, which serves, is not the slow one."""
        return Constant({workers - 1: self.times})

    def __str__(self) -> str:
        return f"one worker {self.times:g} times slower"


@final
@dataclass(frozen=True)
class Stalls(Kind):
    """Every step of every worker takes `times` as long with `probability`."""

    probability: float = 0.05
    times: float = 10.0

    def __post_init__(self) -> None:
        if self.times <= 0 or not 0 <= self.probability <= 1:
            raise ValueError(
                f"stalls:probability={self.probability:g},times={self.times:g} are not a share and a factor; write "
                "--stragglers stalls:probability=0.05,times=10"
            )

    def of(self, workers: int) -> Stragglers:
        """Independent of each other."""
        return Transient(self.probability, self.times)

    def __str__(self) -> str:
        return f"{self.probability:.0%} of all steps {self.times:g} times longer"


KINDS: Registry[Kind] = Registry("kind of stragglers", "thinwire.stragglers")
for _name, _kind in (("slow", Slow), ("stalls", Stalls)):
    KINDS.add(_name, _kind)
