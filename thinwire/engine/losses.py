"""Losses: what a rank was told of its loss since the last round, for periods that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor


@final
class Losses:
    """A sum on the device of the losses, so that nothing waits for it before the round."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0

    def tell(self, loss: Tensor | float) -> None:
        """One more."""
        one = torch.as_tensor(loss, dtype=torch.float32).detach()
        self._sum = one.clone() if self._sum is None else self._sum + one
        self._count += 1

    def mean(self) -> Tensor:
        """The mean since the last call; ValueError if there was none."""
        if self._sum is None:
            raise ValueError(
                "this method's period follows the loss, and no loss was reported since the last round; "
                "write wire.report_loss(loss) in every step"
            )
        mean = self._sum.reshape(1) / self._count
        self._sum, self._count = None, 0
        return mean

    def save(self) -> list[float]:
        """Sum and count."""
        return [] if self._sum is None else [float(self._sum), self._count]

    def load(self, saved: Sequence[float]) -> None:
        """Go on from there."""
        self._sum, self._count = (torch.tensor(float(saved[0])), int(saved[1])) if saved else (None, 0)
