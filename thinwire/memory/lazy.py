"""Lazy: a rank uploads only when its vector has changed by more than the parameters have moved lately.

Both ends keep the last upload, the sender its own q_i and the receiver the mean q of all. With lr the learning rate
and D = `depth` past steps of the parameters x:

    v = x_i - q_i is encoded to v^;   e = v - v^ is what this would lose, e^ what the last upload lost
    bar = `xi` sum_{d=1..D} |dx_d / lr|^2 + `weight` (|e|^2 + |e^|^2) + n `slack`
    |v^|^2 >= bar, or the first upload, or `patience` rounds without one:   v^ is sent, q_i += v^
    out = q + mean_i v^_i (0 for ranks that skip),   q = out                at the receiver

Without loss (Identity) e = 0 and this is LAG; with a quantiser it is LAQ. `patience=None` never forces an upload.

`Context.motion` holds the steps as mean squares of dx_d / lr over all parameters, so that a vector that is a part of
them is compared with its share, and the shares add up to the whole. Without steps (in the first round, or under a
driver that does not measure them) that term is 0.

One piece of state is not a vector: `age`, the number of rounds since the last upload, or 0 before the first. It is
kept per element and not per rank, since the shards of a vector are uploaded one by one, each at its own age; where
pieces of several vectors come together, the oldest counts.

>>> import torch
>>> memory = Lazy(weight=0)
>>> state = {"last": torch.tensor([4.0]), "lost": torch.zeros(1), "age": torch.ones(1)}
>>> memory.after(torch.tensor([5.0]), torch.tensor([1.5]), state)
>>> state["last"], state["lost"]
(tensor([5.5000]), tensor([-0.5000]))

Reference: Chen, Giannakis, Sun, Yin, "LAG: lazily aggregated gradient for communication-efficient distributed
learning", NeurIPS 2018, arXiv 1805.09965, equation 15a. Sun, Chen, Giannakis, Yang, "Communication-efficient
distributed learning via lazily aggregated quantized gradients", NeurIPS 2019, arXiv 1909.07588, equation 7.

Departs from the papers: they apply the sum of the ranks' gradients; we apply the mean. With f_i replaced by f_i / M
on M ranks, both sides of their rule carry 1/M^2, which is why there is no M above. Every step is divided by the
learning rate that it was made with, where theirs is divided by one constant. The first upload is always made. A
change below 2^-22 of the vector is not worth an upload: it is rounding. q_i and q are float64, so that q stays the
mean of the q_i, however many uploads there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.memory import Memory
from thinwire.core.slots import SUM, Slot, Slots
from thinwire.kernels.length import square_length

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State

ROUNDING = 2.0**-22  # a change of this size, relative to the vector, is noise of float32


@final
@dataclass(frozen=True)
class Lazy(Memory):
    """The last upload at both ends, and the rule that says when the next one is due."""

    name: ClassVar[str] = "lazy"
    skips: ClassVar[bool] = True
    needs_scale: ClassVar[bool] = True
    settles: ClassVar[bool] = True
    xi: float = 0.08
    depth: int = 10  # past steps
    weight: float = 3.0  # of the quantisation errors
    patience: int | None = 100  # rounds
    slack: float = 0.0  # mean square of a change that is never worth an upload

    def __post_init__(self) -> None:
        if not (self.xi >= 0 and self.weight >= 0 and self.slack >= 0):
            raise ValueError(
                f"Lazy(xi={self.xi}, weight={self.weight}, slack={self.slack}): none may be below 0; "
                "write Lazy(xi=0.08, weight=3.0, slack=0.0)"
            )
        if self.depth < 1 or (self.patience is not None and self.patience < 1):
            raise ValueError(
                f"Lazy(depth={self.depth}, patience={self.patience}): write depth >= 1, and patience >= 1 or None"
            )

    @property
    def motion(self) -> int:
        """The number of past steps that the rule looks at."""
        return self.depth

    def slots(self) -> Slots:
        """The last upload q_i, what it lost, and how many rounds ago it was."""
        return {"last": Slot(dtype=SUM), "lost": Slot(), "age": Slot()}

    def receiver_slots(self) -> Slots:
        """The mean of the last uploads, the same at all receivers."""
        return {"last": Slot(replicated=True, dtype=SUM)}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """The innovation: x - q_i."""
        return (x - state["last"]).float()

    def worth(self, x: Tensor, sent: Tensor, state: State, ctx: Context) -> bool:
        """Apply the rule; a round without an upload makes the state older, in place."""
        age = state["age"]
        n = x.numel()
        if n == 0:
            return False
        steps = self.xi * sum(ctx.motion[: self.depth]) + self.slack
        errors = square_length(self._lost(x, sent, state)) + square_length(state["lost"])
        bar = n * steps + self.weight * errors + ROUNDING**2 * square_length(x)
        youngest, oldest = age.min().item(), age.max().item()
        late = self.patience is not None and oldest > self.patience
        if youngest == 0 or late or not square_length(sent) < bar:  # `not <`, so that NaN is sent
            return True
        age.add_(1)
        return False

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """Remember the upload, in place."""
        lost, now = self._lost(x, sent, state), state["last"] + sent
        fine = now.isfinite() & lost.isfinite()  # a step that is not finite leaves the memory as it was
        for name, value in (("last", now), ("lost", lost), ("age", torch.ones_like(now))):
            state[name].copy_(torch.where(fine, value, state[name]))

    def receive(self, got: Tensor, state: State) -> Tensor:
        """The mean of the last uploads, in place."""
        last = state["last"]
        out = last + got
        last.copy_(torch.where(out.isfinite(), out, last))
        return out.float()

    def _lost(self, x: Tensor, sent: Tensor, state: State) -> Tensor:
        return ((x - state["last"]) - sent).float()
