"""Piecemeal: one step of an optimizer, taken for some of its parameters now and for others later.

Torch's optimizers update each parameter from its own gradient and its own state, so that a step on some parameters
after another is one step. Learning rates and the like are those of the moment at which the step was asked for: by the
time of its last part, a scheduler may have set those of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.engine.parameters import Trained

NOT_PIECEMEAL = "write Overlap(into_forward=None), with which the optimizer steps once all gradients are there"


@final
class Piecemeal:
    """A step that was asked for when this was made."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [
            {key: _kept(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        self._step = _body(optimizer)

    @torch.no_grad()
    def take(self, members: Sequence[Trained]) -> None:
        """Step those that have a gradient, which is gone then."""
        optimizer = self._optimizer
        some = [one for one in members if one.parameter.grad is not None]
        indices = sorted({one.item.group for one in some})
        groups: list[dict[str, Any]] = [
            {"params": [one.parameter for one in some if one.item.group == at], **self._groups[at]} for at in indices
        ]
        before = [dict(group) for group in groups]
        whole, optimizer.param_groups = optimizer.param_groups, groups
        try:
            self._step(optimizer)
        finally:
            optimizer.param_groups = whole
            for one in some:
                one.parameter.grad = None
        for old, new in zip(before, groups, strict=True):
            changed = [key for key in new if key not in old or not _same(new[key], old[key])]
            if changed:
                raise ValueError(
                    f"{type(optimizer).__name__} changes {changed[0]!r} of its parameter groups in every step, and "
                    f"would do so once per bucket; {NOT_PIECEMEAL}"
                )


def _same(new: Any, old: Any) -> bool:
    return new is old or (not isinstance(new, Tensor) and not isinstance(old, Tensor) and bool(new == old))


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _body(optimizer: Optimizer) -> Callable[[Optimizer], Any]:
    """The step without what torch puts around it: hooks and profiling belong to the step that the user asks for."""
    step: Callable[[Optimizer], Any] = type(optimizer).step
    return getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
