"""MARINA's exchange: ranks send their whole vector now and then, and compressed changes of it in between.

With a coin that is the same on all ranks, of probability p (and in the first round):

    heads   g = (1/n) sum_i x_i                       32 bits per element, summed on the wire
    tails   g = g + (1/n) sum_i Q(x_i - x_i')         through the exchange `changes`; x_i' is the last vector

Every rank keeps its last vector x_i' and the estimate g, which is the same on all. Q must be unbiased: the error of g
then grows as a random walk whose steps have the size of the changes, until the next heads.

>>> from thinwire.compressors.natural import Natural
>>> from thinwire.core.channel import Channel
>>> from thinwire.exchange.all_gather import AllGather
>>> Marina(AllGather(Channel(Natural())), p=0.1).p
0.1

Reference: Gorbunov, Burlachenko, Li, Richtarik, "MARINA: faster non-convex distributed learning with compression",
ICML 2021, arXiv 2102.07845, algorithm 1.

Departs from the paper: x_i' is remembered, not computed again at the last point. For full gradients it is the same;
for mini-batches it is the last batch's, so that changes hold the noise of two batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.exchange import Exchange
from thinwire.core.slots import Slot
from thinwire.exchange.wrapper import Wrapper
from thinwire.kernels import philox

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Key, Layout, State

COIN = 255  # the hop that no payload has: its noise is the coin's
SELDOM = 2.0**-33  # a probability with which the coin shows heads only where it is 0


@final
@dataclass(frozen=True)
class Marina(Wrapper):
    """Whole vectors with probability `p`, otherwise their `changes`."""

    name: ClassVar[str] = "marina"
    changes: Exchange
    p: float = 0.0625

    def __post_init__(self) -> None:
        if not isinstance(self.changes, Exchange):
            raise TypeError(f"Marina takes an Exchange; write Marina(AllGather({self.changes!r}))")
        if not 0 < self.p <= 1:
            raise ValueError(f"Marina(p={self.p}) is outside 0 < p <= 1; write p = 1 / (1 + omega)")
        own = self.changes.remembers and not any(channel.memory.remembers for channel in self.changes.channels)
        if self.changes.scope != "everybody" or own or not self.changes.keeps_scale:
            raise ValueError(
                f"Marina adds up means over all ranks, and {self.changes!r} gives no mean or keeps a state; "
                "write Marina(AllReduce(Channel(RandomK(ratio=0.0625))))"
            )
        for channel in self.changes.channels:
            if not channel.compressor.unbiased or channel.memory.remembers:
                raise ValueError(
                    f"Marina adds up changes, which needs unbiased compressors without a memory; got {channel!r}: "
                    "write Marina(AllReduce(Channel(RandomK(ratio=0.0625))))"
                )

    @property
    def inner(self) -> Exchange:
        """The exchange of the changes."""
        return self.changes

    @property
    def remembers(self) -> bool:
        """The last vector and the estimate."""
        return True

    @property
    def carries_nan(self) -> bool:
        """No: it is not a plain sum in every round."""
        return False

    @property
    def measurable(self) -> bool:
        """As the compressor of the changes says, whatever sums them."""
        return self.channels[0].compressor.keeps_scale

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """The last vector of this rank, and the estimate of all."""
        return {"send.last": Slot(), "recv.estimate": Slot(replicated=True)}

    def rounds(self) -> tuple[tuple[float, Exchange], ...]:
        """Heads, and tails."""
        if self.p == 1:
            return ((1.0, self),)
        return ((self.p, replace(self, p=1.0)), (1 - self.p, replace(self, p=SELDOM)))

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The estimate of the mean over ranks."""
        last, estimate = state["send.last"], state["recv.estimate"]
        wide = x.float().clone()
        if not bool(estimate.any()) or heads(ctx.key, self.p):  # an estimate of 0 means that there is none yet
            out = await ctx.comm.all_reduce(wide / ctx.comm.size)
        else:
            out = estimate + await self.changes(wide - last, {}, ctx)
        fine = out.isfinite()  # the same on all ranks; where it is false, all keep what they had
        last.copy_(torch.where(fine, wide, last))
        estimate.copy_(torch.where(fine, out, estimate))
        return out


def heads(key: Key, p: float) -> bool:
    """The coin of a round: the same on all ranks, for all buckets and chunks."""
    coin = key.fold(rank=0, bucket=0, offset=0, hop=COIN)
    return philox.first(coin) < p * 2.0**32
