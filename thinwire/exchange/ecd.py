"""ECD-PSGD: ranks send extrapolated models, so that the neighbours' running average of them follows the model.

Sends C(z_i), one payload per neighbour and step. In step t = 1, 2, ..., with y_j the estimate of x_j that all
neighbours of j keep and u_i = x_half_i - x_i the local update:

    x_i' = sum_j W_ij y_j + u_i
    z_i  = (1 - t/2) x_i + (t/2) x_i'
    y_i  = (1 - 2/t) y_i + (2/t) C(z_i)

The noise of C(z_i) enters y_i with weight 2/t, and z_i grows with t, so only unbiased, mild compression converges:
biased compressors are refused.

Reference: Tang, Gan, Zhang, Zhang, Liu, "Communication compression for decentralized training", NeurIPS 2018,
arXiv 1803.06443, algorithm 2.

Departs from the paper: s_i = sum_j W_ij y_j is kept in place of a copy of every neighbour's estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.core.channel import Channel, check_channel
from thinwire.core.slots import SUM, Slot
from thinwire.exchange.gossip import Gossip, check_fixed, check_graph, identity, trade, weighted
from thinwire.exchange.mix import Mix
from thinwire.topology.base import Topology
from thinwire.topology.ring import Ring

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class Ecd(Gossip):
    """Extrapolation compression on a graph."""

    name: ClassVar[str] = "ecd"
    channel: Channel = field(default_factory=identity)
    topology: Topology = field(default_factory=Ring)

    def __post_init__(self) -> None:
        check_channel("Ecd", self.channel)
        check_graph("Ecd", self.topology)
        if not self.channel.compressor.unbiased:
            raise ValueError(
                f"ECD-PSGD averages estimates, and those of {self.channel.compressor.id} are biased: it would stall; "
                "write ecd_psgd(compressor='qsgd:bits=8'), or deepsqueeze() for any compressor"
            )
        if self.channel.memory.remembers:
            raise ValueError(
                f"Ecd is its own memory; got {self.channel.memory!r}: write Ecd(Channel({self.channel.compressor!r}))"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def plain(self) -> Mix:
        """The same graph in float32."""
        return Mix(topology=self.topology)

    @property
    def remembers(self) -> bool:
        """A sum over neighbours."""
        return True

    @property
    def cannot_drop(self) -> str:
        """No: a sum over neighbours cannot forget one of them."""
        return "write deepsqueeze(), or choco_sgd(copies=True)"

    def check(self, n: int) -> None:
        """Refuse a graph whose neighbours change."""
        check_fixed("ECD-PSGD", self.topology, n)

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """Room for s_i."""
        return {"recv.estimate": Slot(on_resize="reset", dtype=SUM)}

    def start(self, x: Tensor, state: State) -> None:
        """Start every estimate at the common model."""
        state["recv.estimate"].copy_(x)

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The new model x_i'."""
        assert ctx.before is not None
        near, s, t = self.near(ctx), state["recv.estimate"], ctx.key.step + 1
        new = s + (x - ctx.before)
        z = (1 - t / 2) * ctx.before + (t / 2) * new
        payload = self.channel.send(z.float(), {}, ctx)
        assert payload is not None
        messages = {**await trade(self.channel, payload, near, ctx), ctx.comm.rank: payload}
        heard = weighted(self.channel, messages, {**near.sources, ctx.comm.rank: near.own}, s, ctx)
        s.mul_(1 - 2 / t).add_(heard, alpha=2 / t)
        return new.to(x.dtype)
