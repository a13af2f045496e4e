"""Momentum correction: momentum is applied before compression, and is held back with what is not sent.

    u = m u + x                   the velocity, with momentum m         (nesterov: u = m (u + x))
    v = v + u                     what has not been sent                (nesterov: v = v + u + x)
    q = C(v) is sent;  v = v - q;  u = 0 where q is not 0               ("factor masking")

The optimizer behind it must have no momentum of its own. Tensors that travel uncompressed, and all of them in rounds
of warm-up, keep u alone and send it whole (thinwire/memory/velocity.py): the same momentum SGD. With m = 0 this is
error feedback, e = p - q. With `clip` each rank first scales x down to a norm of at most clip / sqrt(n), n the number
of ranks, so that the sum of n independent gradients is clipped near `clip`.

u and v are in units of the gradient. When the learning rate changes by a factor, `rescaled` divides v by it, so that
what was held back moves the parameters as it would have; u goes on as an optimizer's momentum does.

>>> MomentumCorrection(momentum=0.9)
MomentumCorrection(momentum=0.9, nesterov=False, clip=None, rescaled=True)

Reference: Lin, Han, Mao, Wang, Dally, "Deep gradient compression: reducing the communication bandwidth for
distributed training", ICLR 2018, arXiv 1712.01887, equations 4 and 5, sections 3.1 to 3.3.

Departs from the paper: v keeps what the rounding of the values loses, where the paper sets it to 0. The norm that is
clipped is that of a message, not of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.memory import Memory
from thinwire.core.slots import Slot, Slots
from thinwire.kernels.selection import finite
from thinwire.memory.velocity import Velocity, clipped

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


@final
@dataclass(frozen=True)
class MomentumCorrection(Memory):
    """The velocity with `momentum`, and the part of its sum that has not been sent."""

    name: ClassVar[str] = "momentum-correction"
    needs_scale: ClassVar[bool] = True
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    rescaled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"MomentumCorrection(momentum={self.momentum}) is outside 0 <= momentum < 1; write momentum=0.9"
            )
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"MomentumCorrection(clip={self.clip}): write a positive norm, or None")

    @property
    def whole(self) -> bool:
        """Not a velocity that decays."""
        return self.momentum == 0

    @property
    def plain(self) -> Memory:
        """The velocity alone, by the same name in the state: nothing waits where all is sent."""
        return Velocity(self.momentum, self.nesterov, self.clip)

    def slots(self) -> Slots:
        """u and v."""
        return {"velocity": Slot(), "residual": Slot()}

    def rescale(self, state: State, factor: float) -> None:
        """v = (lr / lr') v, in place."""
        if self.rescaled:
            state["residual"].mul_(factor)

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """v after this step, and u and v updated in place; both stay as they were if x is not finite."""
        u, v = state["velocity"], state["residual"]
        g = x.float()
        if not finite(g):
            return torch.full_like(v, math.nan)
        if self.clip is not None:
            g = clipped(g, self.clip / math.sqrt(ctx.comm.size))
        if self.nesterov:
            u.add_(g).mul_(self.momentum)
            v.add_(u).add_(g)
        else:
            u.mul_(self.momentum).add_(g)
            v.add_(u)
        return v

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """Subtract what was sent from v, and set u to 0 where something was sent, in place."""
        if bool(sent.isnan().any()):
            return
        state["residual"].sub_(sent)
        state["velocity"].masked_fill_(sent != 0, 0.0)

    def receive(self, got: Tensor, state: State) -> Tensor:
        """What arrived, unchanged."""
        return got
