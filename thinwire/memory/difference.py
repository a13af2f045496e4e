"""Difference: both ends keep a prediction of the vector, and only what it misses is sent. DIANA's shift, EF21's g_i.

Each sender keeps its shift h_i; the receiver keeps one for everybody, h = mean_i h_i. With q_i what is decoded:

    x_i - h_i        is encoded
    h_i += alpha q_i                                  at the sender
    out = h + mean_i q_i,    h += alpha mean_i q_i    at the receiver

As the vectors settle, so do the shifts; what is sent tends to zero, and the compression error with it. Without a
shift the error stays as large as the gradients of the single ranks, which do not vanish at the optimum of their mean.

Shifts are float64, 8 bytes per element: h stays the mean of the h_i to rounding, however long training takes.

Unbiased compressors (DIANA): alpha <= 1 / (1 + omega). Contractions (EF21): alpha = 1, where out = mean_i h_i.

The two ends must move together: a message that is lost for one of them only leaves h apart from the mean of the h_i,
and biases the result by that much from then on. Where a payload is not finite, its sender and the receiver keep their
shifts but the other senders cannot know; a driver must make sure that no rank sends such a step, as the engine
does.

>>> import torch
>>> memory, state = Difference(alpha=0.5), {"shift": torch.tensor([4.0])}
>>> memory.receive(torch.tensor([2.0]), state), state["shift"]
(tensor([6.]), tensor([5.]))

Reference: Mishchenko, Gorbunov, Takac, Richtarik, "Distributed learning with compressed gradient differences", 2019,
arXiv 1901.09269, algorithm 1. Richtarik, Sokolov, Fatkhullin, "EF21: a new, simpler, theoretically better, and
practically faster error feedback", NeurIPS 2021, arXiv 2106.05203, algorithm 2, for alpha = 1.

Departs from the papers: nothing. The shifts start at zero, so that EF21's first g_i is C(x_i), as in its paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.core.memory import Memory
from thinwire.core.slots import SUM, Slot, Slots

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


@final
@dataclass(frozen=True)
class Difference(Memory):
    """Shifts at both ends that follow the vector with step `alpha`."""

    name: ClassVar[str] = "difference"
    needs_scale: ClassVar[bool] = True
    settles: ClassVar[bool] = True
    for_models: ClassVar[bool] = True
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(
                f"Difference(alpha={self.alpha}) is outside 0 < alpha <= 1; write Difference(alpha=1 / (1 + omega)) "
                "for an unbiased compressor or Difference() for a contraction"
            )

    @property
    def whole(self) -> bool:
        """Where alpha = 1."""
        return self.alpha == 1

    def growth(self, omega: float) -> float:
        """alpha^2 omega + (1 - alpha)^2: the factor of the square of x_i - h_i from step to step."""
        return self.alpha**2 * omega + (1 - self.alpha) ** 2

    def steadied(self, omega: float) -> Memory:
        """With alpha = 1 / (1 + omega), where x_i - h_i shrinks fastest, in two digits."""
        return replace(self, alpha=float(f"{1 / (1 + omega):.2g}"))

    def slots(self) -> Slots:
        """The sender's shift h_i."""
        return {"shift": Slot(dtype=SUM)}

    def receiver_slots(self) -> Slots:
        """The receivers' shift h, the same at all of them."""
        return {"shift": Slot(replicated=True, dtype=SUM)}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """What the shift misses: x - h_i."""
        return (x - state["shift"]).float()

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """Let the shift follow what was sent, in place."""
        self._follow(sent, state)

    def receive(self, got: Tensor, state: State) -> Tensor:
        """The prediction plus what it missed; the shift follows, in place."""
        out = (state["shift"] + got).float()
        self._follow(got, state)
        return out

    def _follow(self, q: Tensor, state: State) -> None:
        # A step that is not finite leaves the shift as it was.
        state["shift"].add_(q.nan_to_num(0.0, 0.0, 0.0), alpha=self.alpha)
