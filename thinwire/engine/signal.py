"""What goes into a bucket for a parameter, and what comes back out: the gradient, or Adam's momentum.

    Grad      g                          p.grad = what arrived
    Momentum  m' = b1 m + (1 - b1) g     p.grad = (m'' - b1 m) / (1 - b1)

With `Momentum`, m is the optimizer's own `exp_avg`, equal on all ranks, and m'' the exchanged momentum: the
optimizer's next step then computes m'' from m and p.grad by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.signals import Grad, Momentum, Signal
from thinwire.engine.local import local
from thinwire.engine.optimizers import name_of_optimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer


class Source(ABC):
    """Writes and reads buckets for one optimizer."""

    changes: ClassVar[bool] = True
    """Whether `fill` and `take` do anything."""

    @abstractmethod
    def fill(self, place: Tensor, p: Parameter, group: int) -> bool:
        """Turn the gradient that lies in `place` into what is sent; returns whether that changed it."""

    @abstractmethod
    def take(self, place: Tensor, p: Parameter, group: int) -> None:
        """Turn what arrived in `place` into a gradient."""


@final
class GradSource(Source):
    """The gradient itself."""

    changes: ClassVar[bool] = False

    def fill(self, place: Tensor, p: Parameter, group: int) -> bool:
        """Leave the gradient as it is."""
        return False

    def take(self, place: Tensor, p: Parameter, group: int) -> None:
        """Leave the result as it is."""


@final
class MomentumSource(Source):
    """The first moment of an Adam optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        if not all("betas" in group for group in optimizer.param_groups):
            raise ValueError(
                f"this method exchanges Adam's momentum, but {name_of_optimizer(optimizer)} has none; "
                "write optimizer = thinwire.optim.OneBitAdam(model.parameters())"
            )
        self._optimizer = optimizer

    def fill(self, place: Tensor, p: Parameter, group: int) -> bool:
        """m' = b1 m + (1 - b1) g."""
        place.mul_(1 - self._beta(group)).add_(self._momentum(p), alpha=self._beta(group))
        return True

    def take(self, place: Tensor, p: Parameter, group: int) -> None:
        """g = (m'' - b1 m) / (1 - b1)."""
        place.sub_(self._momentum(p), alpha=self._beta(group)).div_(1 - self._beta(group))

    def _beta(self, group: int) -> float:
        return float(self._optimizer.param_groups[group]["betas"][0])

    def _momentum(self, p: Parameter) -> Tensor:
        m = self._optimizer.state[p].get("exp_avg")
        return torch.zeros_like(local(p), dtype=torch.float32) if m is None else local(m).float()


def source(of: Signal, optimizer: Optimizer | None) -> Source:
    """The source for the signal `of`."""
    if isinstance(of, Momentum):
        if optimizer is None:
            raise ValueError("this method exchanges Adam's momentum; write tw.ddp_hook(method, model, optimizer)")
        return MomentumSource(optimizer)
    if isinstance(of, Grad) or of.models:  # models are filled in by their schedule
        return GradSource()
    raise ValueError(f"attach does not know the signal {of!r}; write Sync(of=Grad())")
