"""The parts of an outer loop: what the mean way does to the anchor, where a rank goes on, and when the next round is.

    x_i       the model of rank i, after some local steps
    anchor    the model from which the ranks set out, equal on all
    d         the mean over ranks of anchor - x_i, the pseudo-gradient

A round is: local steps; d is exchanged; `OuterStep` moves the anchor by d; `Merge` says where each rank goes on; and
`Period` after how many steps the next round is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from thinwire.core.config import Config
from thinwire.core.given import is_whole

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def settling(momentum: float) -> int:
    """Rounds after which less than a hundredth of the first one's weight is missing from the momentum's sum.

    >>> settling(0.9), settling(0.5), settling(0.0)
    (50, 10, 0)
    """
    return round(5 / (1 - momentum)) if momentum else 0


class OuterStep(Config, ABC):
    """Base class: an optimizer of torch for the anchors, whose gradients are the pseudo-gradients."""

    @property
    def adds_up(self) -> bool:
        """Whether the step is anchor - d and nothing else: then the anchor becomes the mean of the models."""
        return False

    @property
    def momentum_rounds(self) -> int:
        """Rounds after which its momentum has settled: five times as many as it remembers; 0 without momentum."""
        return 0

    @property
    def rate(self) -> float:
        """The factor of d in a plain step, without momentum: what a worker sees of its own way before all have it."""
        return 1.0

    @abstractmethod
    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Made for one group of anchors per parameter group; "inner_lr" of each is the learning rate of the ranks."""


class Place(NamedTuple):
    """What a merge sees, each as one vector; equal on all ranks but for `x` and `sent`."""

    x: Tensor  # the model of this rank as it is now
    anchor: Tensor  # after the outer step
    before: Tensor  # the anchor before it
    sent: Tensor  # the model of this rank when its way was sent
    ranks: int


class Merge(Config, ABC):
    """Base class: where a rank goes on when the outer step has been taken."""

    needs_x: ClassVar[bool] = True  # whether it looks at the model as it is
    needs_before: ClassVar[bool] = False  # whether it looks at the anchor before the step
    needs_sent: ClassVar[bool] = False  # whether it looks at the model that was sent
    takes: ClassVar[bool] = False  # whether the model is the anchor

    @abstractmethod
    def merge(self, at: Place) -> Tensor:
        """The model to go on with."""


class Seen(NamedTuple):
    """What all ranks know when a round is launched."""

    every: int  # of `Sync`
    round: int  # that have been launched before
    step: int  # local steps so far
    lr: float
    first_lr: float  # in the first round
    loss: float  # mean over the steps since the last round, and over ranks; 0 for periods that do not hear it
    first_loss: float


class Period(Config, ABC):
    """Base class: how many local steps there are until the next round."""

    hears_loss: ClassVar[bool] = False  # whether it looks at the loss (`Wire.report_loss`)
    at_end: ClassVar[bool] = False  # whether the only round is when training ends

    def first(self, every: int) -> int:
        """Steps before the first round."""
        return every

    @abstractmethod
    def steps(self, seen: Seen) -> int:
        """Steps from this round to the next."""

    @final
    def ahead(self, seen: Seen) -> int:
        """`steps`, refused where it is no number of steps."""
        steps = self.steps(seen)
        if not is_whole(steps, least=1):
            raise ValueError(f"{self!r}.steps(...) is {steps!r}; write a whole number of steps, 1 or more")
        return int(steps)
