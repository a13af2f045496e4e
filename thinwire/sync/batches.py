"""Growing batches: every step takes rho times as many samples as the last one.

    B_k = floor(rho^(k-1) B_1)        B_1 is what `wire.batch` is asked with; a run ends before sum B_k > T

With a budget of T samples per rank and rho > 1 that is about log_rho(1 + T (rho - 1) / B_1) steps, each with one
exchange. With theta, training is sqrt(n T) runs on n ranks, of a budget of floor(sqrt(T / n)) each, and every run
minimises f(x) + theta/2 |x - y|^2 from the model y that the last one ended with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from thinwire.core.batches import Batches, Taken


@final
@dataclass(frozen=True)
class GrowingBatches(Batches):
    """`total` is T, and None for no end."""

    name: ClassVar[str] = "growing-batches"
    rho: float = 1.1
    total: int | None = None
    theta: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.rho < math.inf:
            raise ValueError(f"GrowingBatches(rho={self.rho}): write rho=1.1, or 1 for batches that stay as they are")
        if self.total is not None and self.total < 1:
            raise ValueError(f"GrowingBatches(total={self.total}): write how many samples a rank may take, or None")
        if not 0 <= self.theta < math.inf:
            raise ValueError(
                f"GrowingBatches(theta={self.theta}): write theta=0, or more than the curvature of the loss"
            )
        if self.theta and self.total is None:
            raise ValueError(
                f"GrowingBatches(theta={self.theta}) has runs of floor(sqrt(total / ranks)) samples; "
                "write total=100_000, or another number of samples"
            )

    def size(self, first: int, taken: Taken) -> int:
        """floor(rho^(k-1) B_1), with k - 1 steps taken."""
        return math.floor(self.rho**taken.steps * first)

    def budget(self, ranks: int) -> int | None:
        """T, or floor(sqrt(T / n))."""
        return math.isqrt(self.total // ranks) if self.theta and self.total is not None else self.total

    def runs(self, ranks: int) -> int | None:
        """One, or floor(sqrt(n T))."""
        if self.total is None:
            return None
        return math.isqrt(ranks * self.total) if self.theta else 1
