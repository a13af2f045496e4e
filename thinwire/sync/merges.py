"""Merges: where a rank goes on from when the outer step has been taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.sync.outer import Merge, Place

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Take(Merge):
    """x = anchor. Local steps since the way was sent are lost, of which there are none without a delay."""

    name: ClassVar[str] = "take"
    needs_x: ClassVar[bool] = False
    takes: ClassVar[bool] = True

    def merge(self, at: Place) -> Tensor:
        """All ranks go on together."""
        return at.anchor


@final
@dataclass(frozen=True)
class Mixed(Merge):
    """x = (1 - alpha) anchor + alpha x. With alpha=1 a rank goes on as if nothing had been exchanged."""

    name: ClassVar[str] = "mixed"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"Mixed(alpha={self.alpha}): write 0 <= alpha <= 1, the share of the rank's own model")

    def merge(self, at: Place) -> Tensor:
        """On the line between both."""
        return at.anchor.lerp(at.x, self.alpha)


@final
@dataclass(frozen=True)
class Carried(Merge):
    """x = anchor + (x - sent). Local steps since the way was sent are added to what came of it."""

    name: ClassVar[str] = "carried"
    needs_sent: ClassVar[bool] = True

    def merge(self, at: Place) -> Tensor:
        """Nothing is lost."""
        return at.anchor + (at.x - at.sent)


@final
@dataclass(frozen=True)
class Elastic(Merge):
    """x = x - (beta / n) (x - anchor), with the anchor as it was before the step, and n ranks."""

    name: ClassVar[str] = "elastic"
    needs_before: ClassVar[bool] = True
    beta: float = 0.9

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError(f"Elastic(beta={self.beta}) pushes ranks apart; write beta >= 0, such as 0.9")

    def merge(self, at: Place) -> Tensor:
        """A spring between each rank and the centre."""
        return at.x.lerp(at.before, self.beta / at.ranks)
