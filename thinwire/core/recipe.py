"""Recipe: what a method wants of the optimizer behind it; stated beside the factory and read as `method.recipe`.

Most methods hand the optimizer an estimate of the mean gradient, and train as float32 does: SGD with momentum 0.9 and
the step size of the task. The others state a recipe of their own: a vote moves every weight by lr whatever the
gradient, and a memory that keeps momentum leaves none for the optimizer.

>>> Recipe(momentum=0.0, lr=1e-3).words
'SGD, no momentum, lr 0.001'
>>> Recipe(momentum=0.0, scale=10).words
'SGD, no momentum, 10 times the lr'
>>> Recipe(nesterov=True).words
'SGD, Nesterov momentum 0.9'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from thinwire.core.config import check_choice

NAMES = {"sgd": "SGD", "1-bit adam": "OneBitAdam", "muon": "Muon and AdamW"}


@final
@dataclass(frozen=True)
class Recipe:
    """The optimizer, its momentum, and its step size: `lr` itself, or the task's times `scale`.

    `note` is for users: it says what the method is for, where that is easily mistaken.
    """

    optimizer: Literal["sgd", "1-bit adam", "muon"] = "sgd"
    momentum: float = 0.9
    lr: float | None = None
    scale: float = 1.0
    note: str = ""
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_choice("Recipe", "optimizer", self.optimizer, tuple(NAMES))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Recipe(momentum={self.momentum}) is outside 0 <= momentum < 1; write momentum=0.9")
        if self.scale <= 0 or (self.lr is not None and self.lr <= 0):
            raise ValueError(f"Recipe(lr={self.lr}, scale={self.scale}) does not step; write positive numbers")
        if self.lr is not None and self.scale != 1:
            raise ValueError(f"Recipe(lr={self.lr}, scale={self.scale}): lr is a step already; write one of them")

    def step(self, lr: float) -> float:
        """The step size where that of the task is `lr`."""
        return self.scale * lr if self.lr is None else self.lr

    @property
    def words(self) -> str:
        """The recipe in words, for tables."""
        kind = "Nesterov momentum" if self.nesterov else "momentum"
        momentum = f"{kind} {self.momentum:g}" if self.momentum else ""
        if self.optimizer == "sgd" and not self.momentum:
            momentum = "no momentum"
        size = f"{self.scale:g} times the lr" if self.scale != 1 else ""
        if self.lr is not None:
            size = f"lr {self.lr:g}"
        return ", ".join(word for word in (NAMES[self.optimizer], momentum, size) if word)
