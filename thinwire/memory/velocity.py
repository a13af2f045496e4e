"""Velocity: the momentum of an optimizer, kept where the gradient is and sent whole.

    u = m u + x    is encoded, with momentum m      (nesterov: u = m (u + x), and u + x is encoded)

It is what momentum correction (thinwire/memory/momentum_correction.py) leaves of itself where nothing waits to be
sent: the mean over ranks of u is the velocity of momentum SGD on the mean gradient. What was sent is not forgotten,
since masking is for what a rank sends late. `clip` is as there.

>>> Velocity(momentum=0.9)
Velocity(momentum=0.9, nesterov=False, clip=None)

Reference: Lin, Han, Mao, Wang, Dally, "Deep gradient compression: reducing the communication bandwidth for
distributed training", ICLR 2018, arXiv 1712.01887, section 3.2, equation 3.

Departs from the paper: nothing. (Its authors' code, too, gives this momentum to tensors that it does not compress,
but after the mean over ranks; momentum is linear, so the result is the same.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.memory import Memory
from thinwire.core.slots import Slot, Slots
from thinwire.kernels.selection import finite

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


@final
@dataclass(frozen=True)
class Velocity(Memory):
    """Momentum SGD's velocity with factor `momentum`; `clip` is a norm, of which each rank keeps 1/sqrt(n)."""

    name: ClassVar[str] = "velocity"
    needs_scale: ClassVar[bool] = True
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Velocity(momentum={self.momentum}) is outside 0 <= momentum < 1; write momentum=0.9")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"Velocity(clip={self.clip}): write a positive norm, or None")

    @property
    def whole(self) -> bool:
        """Not a velocity that decays."""
        return self.momentum == 0

    @property
    def plain(self) -> Memory:
        """Itself: nothing of it needs a compressor."""
        return self

    def slots(self) -> Slots:
        """The velocity u."""
        return {"velocity": Slot()}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """The step of momentum SGD; u is updated in place, and stays as it was if x is not finite."""
        u, g = state["velocity"], x.float()
        if not finite(g):
            return torch.full_like(u, math.nan)
        if self.clip is not None:
            g = clipped(g, self.clip / math.sqrt(ctx.comm.size))
        if self.nesterov:
            return u.add_(g).mul_(self.momentum) + g
        return u.mul_(self.momentum).add_(g)

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """Nothing: what was sent stays in u."""

    def receive(self, got: Tensor, state: State) -> Tensor:
        """What arrived, as it is."""
        return got


def clipped(g: Tensor, most: float) -> Tensor:
    """The vector g, cut to the norm `most`; squares are summed in order, so the bits are the same everywhere."""
    norm = math.sqrt(float(g.double().square().cumsum(0)[-1])) if g.numel() else 0.0
    return g * (most / norm) if norm > most else g
