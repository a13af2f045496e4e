"""DCD-PSGD: ranks send how much their model changes, so that all neighbours know it as exactly as its owner does.

Sends C(d_i + x_half_i - x_i), one payload per neighbour and step. With u_i = x_half_i - x_i the local update:

    q_i = C(sum_j W_ij (x_j - x_i) + u_i),    x_i = x_i + q_i

A model moves by what was sent and by nothing else: compression errors stay in it for good, and the step is unbiased
only where C is. d_i = sum_j W_ij (x_j - x_i) is kept, in float64, and moves by sum_j W_ij (q_j - q_i). What x_i loses
by rounding to float32 is kept, too, and is part of the next q_i: what neighbours know of x_i is not rounded.

Reference: Tang, Gan, Zhang, Zhang, Liu, "Communication compression for decentralized training", NeurIPS 2018,
arXiv 1803.06443, algorithm 1.

Departs from the paper: one vector d_i in place of a copy of every neighbour's model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.core.channel import Channel, check_channel
from thinwire.core.slots import SUM, Slot
from thinwire.exchange.gossip import Gossip, check_fixed, check_graph, identity, towards, trade
from thinwire.exchange.mix import Mix
from thinwire.topology.base import Topology
from thinwire.topology.ring import Ring

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Layout, State


@final
@dataclass(frozen=True)
class Dcd(Gossip):
    """Difference compression on a graph."""

    name: ClassVar[str] = "dcd"
    channel: Channel = field(default_factory=identity)
    topology: Topology = field(default_factory=Ring)

    def __post_init__(self) -> None:
        check_channel("Dcd", self.channel)
        check_graph("Dcd", self.topology)
        if self.channel.memory.remembers:
            raise ValueError(
                f"Dcd is its own memory; got {self.channel.memory!r}: write Dcd(Channel({self.channel.compressor!r}))"
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
        check_fixed("DCD-PSGD", self.topology, n)

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """d_i, which is zero while all models are equal; and what neighbours have of this model beyond the model."""
        return {"recv.pull": Slot(on_resize="reset", dtype=SUM), "send.rounded": Slot(on_resize="reset")}

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The model, moved by what was sent."""
        assert ctx.before is not None
        near, pull, rounded = self.near(ctx), state["recv.pull"], state["send.rounded"]
        payload = self.channel.send((pull + (x - ctx.before) - rounded).float(), {}, ctx)
        assert payload is not None
        messages = {**await trade(self.channel, payload, near, ctx), ctx.comm.rank: payload}
        pull += towards(self.channel, messages, near, pull, ctx)
        known = ctx.before.to(SUM) + rounded + self.channel.encoder.decode(payload, ctx.layout, key=ctx.key)
        new = known.to(x.dtype)
        rounded.copy_(known - new)
        return new
