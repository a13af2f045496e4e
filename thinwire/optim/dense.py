"""Dense: optimizers that change one tensor after another, each by its own dense gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer


class Dense(Optimizer):
    """A subclass says what a step does to one tensor."""

    @abstractmethod
    def update(self, x: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        """Change `x`, of which `g` is the gradient, in place; `group` has the settings."""

    @final
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; `closure` computes the loss again."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    if x.grad.is_sparse:
                        name = type(self).__name__
                        raise ValueError(f"{name} takes dense gradients; write torch.nn.Embedding(..., sparse=False)")
                    self.update(x, x.grad, group)
        return loss
