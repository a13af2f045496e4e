"""Outer steps: SGD with Nesterov's momentum, any optimizer of torch, and SlowMo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import torch
from torch.optim import SGD, Optimizer

from thinwire.sync.outer import OuterStep, settling


@final
@dataclass(frozen=True)
class Sgd(OuterStep):
    """v = momentum v + d; anchor = anchor - lr (d + momentum v), or lr v where it is not `nesterov`.

    With lr=1 and momentum=0 the anchor becomes the mean of the models; with lr=0 it stays.
    """

    name: ClassVar[str] = "sgd"
    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if self.lr < 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"Sgd(lr={self.lr}, momentum={self.momentum}): write lr >= 0 and 0 <= momentum < 1")

    @property
    def adds_up(self) -> bool:
        """Where it is a plain mean."""
        return self.lr == 1 and self.momentum == 0

    @property
    def momentum_rounds(self) -> int:
        """Of Nesterov's momentum."""
        return settling(self.momentum)

    @property
    def rate(self) -> float:
        """As given."""
        return self.lr

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Torch's own."""
        return SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov and self.momentum > 0)


@final
@dataclass(frozen=True)
class AnyOptimizer(OuterStep):
    """An optimizer of torch.optim by name: `AnyOptimizer.of("AdamW", lr=0.01, betas=(0.9, 0.95))`."""

    name: ClassVar[str] = "any-optimizer"
    kind: str = "SGD"
    settings: tuple[tuple[str, Any], ...] = (("lr", 0.7),)

    @classmethod
    def of(cls, kind: str, **settings: Any) -> Self:
        """With these arguments.

        >>> AnyOptimizer.of("AdamW", lr=0.01)
        AnyOptimizer(kind='AdamW', settings=(('lr', 0.01),))
        """
        return cls(kind, tuple(settings.items()))

    def __post_init__(self) -> None:
        try:
            self.optimizer([{"params": [torch.nn.Parameter(torch.zeros(1, 1))]}])
        except (AttributeError, TypeError, ValueError) as error:
            given = ", ".join(f"{key}={value!r}" for key, value in self.settings)
            raise ValueError(
                f"torch.optim.{self.kind}(anchors, {given}) cannot be made ({error}); "
                'write AnyOptimizer.of("AdamW", lr=0.01), with a name and the arguments that torch.optim knows'
            ) from error

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """As torch makes it."""
        made: Optimizer = getattr(torch.optim, self.kind)(groups, **dict(self.settings))
        return made


@final
@dataclass(frozen=True)
class SlowMomentum(OuterStep):
    """u = beta u + d / gamma; anchor = anchor - alpha gamma u, with gamma the learning rate of the ranks.

    u is in units of a gradient, so that a schedule of gamma rescales all of it. Where gamma is 0, the anchor moves by
    alpha d, and u only fades.
    """

    name: ClassVar[str] = "slow-momentum"
    alpha: float = 1.0
    beta: float = 0.5

    def __post_init__(self) -> None:
        if self.alpha <= 0 or not 0 <= self.beta < 1:
            raise ValueError(f"SlowMomentum(alpha={self.alpha}, beta={self.beta}): write alpha > 0 and 0 <= beta < 1")

    @property
    def momentum_rounds(self) -> int:
        """Of the slow momentum."""
        return settling(self.beta)

    @property
    def rate(self) -> float:
        """Alpha, whatever gamma is."""
        return self.alpha

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """One that is written here."""
        return _SlowMo(groups, self.alpha, self.beta)


@final
class _SlowMo(Optimizer):
    def __init__(self, groups: list[dict[str, Any]], alpha: float, beta: float) -> None:
        super().__init__(groups, {"alpha": alpha, "beta": beta, "inner_lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """For every anchor that has a pseudo-gradient."""
        for group in self.param_groups:
            gamma = group["inner_lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                u = self.state[p].setdefault("u", torch.zeros_like(p))
                u.mul_(group["beta"])
                if gamma:
                    u.add_(p.grad, alpha=1 / gamma)
                    p.sub_(u, alpha=group["alpha"] * gamma)
                else:
                    p.sub_(p.grad, alpha=group["alpha"])
