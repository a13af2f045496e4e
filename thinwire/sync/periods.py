"""Periods: after how many local steps the next round is. All ranks compute the same number from what all know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from thinwire.sync.outer import Period, Seen

NEVER = 1 << 62


@final
@dataclass(frozen=True)
class Fixed(Period):
    """`every` steps, always."""

    name: ClassVar[str] = "fixed"

    def steps(self, seen: Seen) -> int:
        """As `Sync` says."""
        return seen.every


@final
@dataclass(frozen=True)
class Growing(Period):
    """tau_i = (1 + alpha i) tau_0, with tau_0 = `every`: more local steps in later rounds."""

    name: ClassVar[str] = "growing"
    alpha: float = 0.1

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ValueError(f"Growing(alpha={self.alpha}) shrinks to nothing; write alpha >= 0, or Shrinking()")

    def steps(self, seen: Seen) -> int:
        """Of the round that begins now."""
        return max(1, math.floor((1 + self.alpha * (seen.round + 1)) * seen.every))


@final
@dataclass(frozen=True)
class Shrinking(Period):
    """tau = ceil(tau_0 sqrt((lr_0 / lr) (F / F_0))), with tau_0 = `every`: fewer local steps as the loss F falls.

    A loss that is not finite or not positive, and a learning rate of 0, say nothing: the round then has tau_0 steps.
    """

    name: ClassVar[str] = "shrinking"
    hears_loss: ClassVar[bool] = True

    def steps(self, seen: Seen) -> int:
        """From the loss and the learning rate, each against that of the first round."""
        parts = (seen.first_lr, seen.lr, seen.loss, seen.first_loss)
        if not all(part > 0 and math.isfinite(part) for part in parts):
            return seen.every
        ratio = seen.first_lr / seen.lr * (seen.loss / seen.first_loss)
        return max(1, math.ceil(seen.every * math.sqrt(ratio)))


@final
@dataclass(frozen=True)
class After(Period):
    """Rounds of one step until step `start`, and of `every` steps from there."""

    name: ClassVar[str] = "after"
    start: int = 0

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"After(start={self.start}): write the number of steps in step, 0 or more")

    def first(self, every: int) -> int:
        """One, unless local steps begin at once."""
        return 1 if self.start > 0 else every

    def steps(self, seen: Seen) -> int:
        """One before `start`."""
        return 1 if seen.step < self.start else seen.every


@final
@dataclass(frozen=True)
class AtEnd(Period):
    """One round, when training ends (`wire.detach()`)."""

    name: ClassVar[str] = "at-end"
    at_end: ClassVar[bool] = True

    def first(self, every: int) -> int:
        """Not while training goes on."""
        return NEVER

    def steps(self, seen: Seen) -> int:
        """Never again."""
        return NEVER
