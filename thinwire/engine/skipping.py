"""Steps that are left out: an optimizer must not see a gradient that is not finite.

    "skip"     the optimizer's step changes nothing (the default)
    "raise"    FloatingPointError before the step
    "keep"     the step is taken, for loops that look at the gradients themselves

A step is left out by hiding the gradients while it runs: torch's optimizers leave a parameter without a gradient, its
moments and its count of steps as they are. After the step the gradients are back, for whoever looks at them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, final, get_args

import torch

from thinwire.engine.agreement import finite
from thinwire.engine.local import local

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

OnNonfinite = Literal["skip", "raise", "keep"]


def check_policy(policy: str) -> None:
    """Refuse a word that is not one of the three."""
    if policy not in get_args(OnNonfinite):
        choices = ", ".join(map(repr, get_args(OnNonfinite)))
        raise ValueError(f"on_nonfinite={policy!r}: write one of {choices}")


@final
class Skipping:
    """Leaves out the steps of one optimizer while `broken` is set."""

    def __init__(
        self, optimizer: Optimizer | None, policy: OnNonfinite, agree: Callable[[bool], bool] = bool
    ) -> None:
        """`agree` says what the ranks that hold the other shards of this model have found, too."""
        self.policy: OnNonfinite = policy
        self._agree = agree
        self.broken = False  # the gradients at hand are not finite
        self.elsewhere: set[int] = set()  # parameters whose step has been taken by a server
        self.skipped = 0  # steps left out so far
        self._optimizer = optimizer
        self._hidden: list[tuple[Tensor, Tensor]] = []  # parameters and their gradients

    def look(self) -> None:
        """Set `broken` by this rank's own gradients, for methods in which each rank steps by itself."""
        if self.policy != "keep" and self._optimizer is not None:
            grads = [local(p.grad) for p in self._parameters() if p.grad is not None]
            self.broken = not _finite(grads)

    def begin(self, step: int) -> None:
        """Apply the policy when the optimizer's step starts, or when gradients arrive in the middle of it."""
        if self.policy != "keep":
            self.broken = self._agree(self.broken)
        broken = self.broken and self.policy != "keep"
        if self._optimizer is None or not (self.elsewhere or broken):
            return
        if self.broken and self.policy == "raise":
            raise FloatingPointError(f"the gradients of step {step} are not finite")
        for p in self._parameters():
            if p.grad is not None and (broken or id(p) in self.elsewhere):
                self._hidden.append((p, p.grad))
                p.grad = None

    def end(self) -> None:
        """Bring back the gradients that were hidden during the step."""
        self.skipped += bool(self._hidden) and self.broken
        for p, grad in self._hidden:
            p.grad = grad
        self._hidden = []
        self.broken, self.elsewhere = False, set()

    def _parameters(self) -> list[Tensor]:
        assert self._optimizer is not None
        return [p for group in self._optimizer.param_groups for p in group["params"]]


def _finite(grads: list[Tensor]) -> bool:
    """On the host a sum per tensor decides; on a GPU one length, and one wait. Either may merely have overflowed."""
    dense = [g.coalesce().values() if g.is_sparse else g for g in grads]
    if all(g.is_cpu for g in dense):
        return all(finite(g) for g in dense)
    length = torch.nn.utils.get_total_norm(dense)
    return bool(length.isfinite()) or all(bool(g.isfinite().all()) for g in dense)
