"""Local momentum: the sender encodes a moving average of its vectors instead of the newest one.

    m = beta m + (1 - beta) x    is encoded; the receiver does nothing

With signs this is SIGNUM: averaging before the sign weighs the gradients by their size, averaging after it cannot.

>>> import torch
>>> memory, state = LocalMomentum(beta=0.5), {"average": torch.tensor([4.0])}
>>> memory.after(torch.tensor([2.0]), torch.tensor([1.0]), state)
>>> state["average"]
tensor([3.])

Reference: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimisation for non-convex problems",
ICML 2018, arXiv 1802.04434, algorithm 2.

Departs from the paper: nothing. Its theory takes sign(x) for the first 54 steps; its algorithm does not, nor do we.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.memory import Memory
from thinwire.core.slots import Slot, Slots

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


@final
@dataclass(frozen=True)
class LocalMomentum(Memory):
    """A moving average that forgets with factor `beta`."""

    name: ClassVar[str] = "local-momentum"
    beta: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ValueError(
                f"LocalMomentum(beta={self.beta}) is outside 0 <= beta < 1; write LocalMomentum(beta=0.9)"
            )

    @property
    def whole(self) -> bool:
        """Not an average that forgets."""
        return self.beta == 0

    @property
    def plain(self) -> Memory:
        """Itself: an average that is sent whole is an average still."""
        return self

    def slots(self) -> Slots:
        """The average m."""
        return {"average": Slot()}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """The next average."""
        return self._next(x, state)

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """Set the average to what was encoded, in place."""
        m, now = state["average"], self._next(x, state)
        m.copy_(torch.where(sent.isfinite() & now.isfinite(), now, m))  # a step that is not finite leaves the average

    def receive(self, got: Tensor, state: State) -> Tensor:
        """What arrived, unchanged."""
        return got

    def _next(self, x: Tensor, state: State) -> Tensor:
        return state["average"] * self.beta + x.float() * (1 - self.beta)
