"""Motion: how far the parameters moved in the last optimizer steps, for memories that ask.

The motion of a step is the mean square over all elements of (x_before - x_after) / lr. If the step is lr times a
gradient, that is the mean square of the gradient. All ranks hold equal parameters, so all ranks measure the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.engine.local import local
from thinwire.kernels.length import square_length
from thinwire.optim.step_hooks import on_step

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from thinwire.core.method import Method


def depth_of(method: Method) -> int:
    """How many past steps the method's memories want to see."""
    return max((channel.memory.motion for channel in method.exchange.channels), default=0)


@final
class Motion:
    """Watches the steps of an optimizer; keeps a copy of its parameters while a step runs."""

    def __init__(self, optimizer: Optimizer | None, depth: int) -> None:
        self.steps: deque[float] = deque(maxlen=depth)  # newest first
        self._before: list[tuple[Tensor, Tensor, float]] = []  # parameter, copy, learning rate
        self._hooks: list[RemovableHandle] = []
        if optimizer is not None and depth:
            self._hooks = on_step(optimizer, self._remember, self._measure)

    def restore(self, steps: Iterable[float]) -> None:
        """Take over the steps that another one measured."""
        self.steps = deque(list(steps)[: self.steps.maxlen], maxlen=self.steps.maxlen)

    def close(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _remember(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._before = [
            (local(p), local(p).detach().clone(), float(group["lr"]))
            for group in optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        ]

    @torch.no_grad()
    def _measure(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        total, count = 0.0, 0
        for p, before, lr in self._before:
            moved = square_length((before.float() - p.float()).contiguous())
            total += moved / lr**2 if lr > 0 else 0.0
            count += p.numel()
        self._before = []
        self.steps.appendleft(total / max(1, count))
