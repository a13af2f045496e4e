"""Steppers: which optimizer moves a server's model, and how fast.

Like     one like the workers', with the learning rates that came with the gradient
Outer    that of an outer loop, which is given the ways of workers as gradients
Idle     none: the rule makes the model itself
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.optim import LBFGS

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from thinwire.sync.outer import OuterStep


class Stepper(ABC):
    """Base class."""

    @abstractmethod
    def optimizer(self, groups: Sequence[Sequence[nn.Parameter]]) -> Optimizer | None:
        """Made for the server's own tensors, by parameter group."""

    @abstractmethod
    def prepare(self, optimizer: Optimizer, lrs: Sequence[float], scale: float) -> float:
        """Set the learning rates of a step that counts `scale` times; returns what to multiply the gradient by."""

    @abstractmethod
    def rate(self, lr: float) -> float:
        """The step size of a plain step with a push, where the worker's learning rate is `lr`."""


@final
class Like(Stepper):
    """Of the kind of the workers' optimizer, with its settings."""

    def __init__(self, like: Optimizer) -> None:
        self._like = like

    def optimizer(self, groups: Sequence[Sequence[nn.Parameter]]) -> Optimizer:
        """From the type and the defaults.

        Some defaults are no arguments (AdamW says with one that it is no Adam); groups have their values as well.
        """
        like = self._like
        if isinstance(like, LBFGS):
            raise ValueError(
                "LBFGS computes gradients again in its step, and a server is only sent them; write "
                "torch.optim.SGD(model.parameters(), lr=...) or another of torch's, or a method without a server"
            )
        settings = [
            {**{name: value for name, value in group.items() if name != "params"}, "params": list(mine)}
            for group, mine in zip(like.param_groups, groups, strict=True)
        ]
        takes = inspect.signature(type(like)).parameters
        defaults = {name: value for name, value in like.defaults.items() if name in takes}
        try:
            return type(like)(settings, **defaults)
        except TypeError as error:
            raise ValueError(
                f"a server steps with an optimizer like the workers', and cannot make a {type(like).__name__} from "
                f"its defaults ({error}); write torch.optim.SGD(model.parameters(), lr=...) or another of torch's"
            ) from error

    def prepare(self, optimizer: Optimizer, lrs: Sequence[float], scale: float) -> float:
        """Scale the step, so that momentum is that of whole gradients."""
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = scale * lr
        return 1.0

    def rate(self, lr: float) -> float:
        """The worker's."""
        return lr


@final
class Outer(Stepper):
    """The ways of workers are gradients for an outer step, which has a step size of its own."""

    def __init__(self, outer: OuterStep) -> None:
        self._outer = outer

    def optimizer(self, groups: Sequence[Sequence[nn.Parameter]]) -> Optimizer:
        """As the outer step makes it."""
        return self._outer.optimizer([{"params": list(mine), "inner_lr": 1.0} for mine in groups])

    def prepare(self, optimizer: Optimizer, lrs: Sequence[float], scale: float) -> float:
        """A way that counts less is shorter."""
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["inner_lr"] = lr
        return scale

    def rate(self, lr: float) -> float:
        """That of the outer step, which the worker's has no part in."""
        return self._outer.rate


@final
class Idle(Stepper):
    """Nothing steps."""

    def optimizer(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        """There is none."""
        return

    def prepare(self, optimizer: Optimizer, lrs: Sequence[float], scale: float) -> float:
        """Never asked."""
        raise AssertionError("a rule without steps has called Book.apply")

    def rate(self, lr: float) -> float:
        """The worker's."""
        return lr


def remembered(stepper: Stepper, like: Tensor, groups: int) -> dict[str, Any]:
    """What the optimizer of a stepper remembers of a tensor, from a step with zeros in its place."""
    p = nn.Parameter(torch.zeros_like(like))
    optimizer = stepper.optimizer([[p], *([] for _ in range(groups - 1))])
    if optimizer is None:
        return {}
    stepper.prepare(optimizer, [1.0] * groups, 1.0)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    return dict(optimizer.state[p]) if p in optimizer.state else {}
