"""Error feedback: the sender keeps what compression lost and adds it to what it sends next.

With residual e, compensation alpha and decay beta:

    p = x + alpha e        is encoded
    e = beta e + (x - q)   where q is p as the receivers decode it

alpha = beta = 1 is the classical form, e = (x + e) - q. alpha = 1, beta = 0 is the formula printed in the 1-bit SGD
paper, which forgets the old residual. ECQ-SGD uses alpha = 0.2, beta = 0.9.

The residual is in units of the gradient. When the learning rate goes from lr to lr', `rescaled` multiplies it by
lr / lr', so that x - lr mean(e) keeps moving as uncompressed SGD does; switch it off for optimizers that are not
linear in the gradient, such as Adam.

Stability: if E|Q(v) - v|^2 <= omega |v|^2, errors stay bounded when alpha^2 omega + (beta - alpha)^2 < 1.

Reference: Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed
optimization", ICML 2018, arXiv 1806.08054. Seide et al., Interspeech 2014, for the classical form.

Departs from the papers: the rescaling, which neither has; `rescaled=False` leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.memory import Feedback, Memory
from thinwire.core.slots import Slot, Slots

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


@final
@dataclass(frozen=True)
class ErrorFeedback(Memory):
    """Residual with compensation `alpha` and decay `beta`.

    >>> round(ErrorFeedback(alpha=0.2, beta=0.9).growth(omega=4.0), 2)
    0.65
    """

    name: ClassVar[str] = "ef"
    needs_scale: ClassVar[bool] = True
    for_models: ClassVar[bool] = True
    alpha: float = 1.0
    beta: float = 1.0
    rescaled: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1 or not 0 <= self.beta <= 1:
            raise ValueError(
                f"ErrorFeedback(alpha={self.alpha}, beta={self.beta}) is outside 0 < alpha <= 1, 0 <= beta <= 1; "
                "write ErrorFeedback() for the classical form or ErrorFeedback(alpha=0.2, beta=0.9) for ECQ-SGD's"
            )

    @property
    def whole(self) -> bool:
        """Where alpha = beta = 1."""
        return self.alpha == self.beta == 1

    def growth(self, omega: float) -> float:
        """alpha^2 omega + (beta - alpha)^2: the factor of the squared residual from step to step."""
        return self.feedback.growth(omega)

    def steadied(self, omega: float) -> Memory:
        """With ECQ-SGD's settings, which suit omega up to 12."""
        return replace(self, alpha=0.2, beta=0.9)

    @property
    def feedback(self) -> Feedback:
        """The equations above."""
        return Feedback(self.alpha, self.beta)

    def slots(self) -> Slots:
        """The residual e."""
        return {"residual": Slot()}

    def rescale(self, state: State, factor: float) -> None:
        """e = (lr / lr') e, in place."""
        if self.rescaled:
            state["residual"].mul_(factor)

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """p = x + alpha e."""
        return x.float() + state["residual"] * self.alpha

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """e = beta e + (x - sent), in place."""
        e = state["residual"]
        now = e * self.beta + (x.float() - sent)
        e.copy_(torch.where(now.isnan(), e, now))  # a step that is not finite leaves the residual as it was

    def receive(self, got: Tensor, state: State) -> Tensor:
        """What arrived, unchanged."""
        return got
