"""Push-sum: on a directed graph ranks give away shares of a numerator and of a weight, and train the quotient.

Sends one payload per neighbour and step, followed by the weight in 8 bytes. With z_i the model that is trained, w_i
its weight, u_i = z_half_i - z_i the local update, and m_i what is decoded from rank i:

    y_i  = w_i z_i + u_i
    y_i' = y_i - sum_j W_ji m_i + sum_j W_ij m_j,    w_i' = w_i - sum_j W_ji w_i + sum_j W_ij w_j
    z_i' = y_i' / w_i'

The columns of W sum to one: what is given away adds up to what was there, so sum_i y_i moves by the updates alone,
and sum_i w_i is the number of ranks. Rows need not sum to one: dividing by w_i undoes what a rank is given too much
of. A rank subtracts what others decode, not what it has, so that the sum is kept whatever the wire rounds.

Where rows of every W sum to one as well, all w_i stay 1: they are neither sent nor kept, and the step is that of
`Mix` with eta = 1. If a neighbour is gone, a rank keeps the share that it would have sent there, in y_i and w_i.
Without weights the share of a source that is gone falls to the rank instead, as in `Mix`: the remaining ranks still
agree, on a mean that counts some of them more.

Reference: Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019, arXiv
1811.10792, algorithm 1. Kempe, Dobra, Gehrke, "Gossip-based computation of aggregate information", FOCS 2003.

Departs from the papers: z_i is kept, and y_i is computed from it when it is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.channel import Channel, check_channel
from thinwire.core.errors import PayloadError
from thinwire.core.payload import Payload
from thinwire.core.slots import Slot
from thinwire.exchange.gossip import Gossip, check_graph, identity, towards, trade, weighted
from thinwire.topology.base import Topology
from thinwire.topology.mixing import check_topology, matrices
from thinwire.topology.one_peer import OnePeer
from thinwire.topology.refusals import TOLERANCE

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Layout, State

WEIGHT = 8  # bytes after a payload
LEAST = 2.0**-40  # below this weight y_i would soon be zero in float32, and the model with it


@final
@dataclass(frozen=True)
class PushSum(Gossip):
    """Averages on directed graphs, including those that change from step to step."""

    name: ClassVar[str] = "push-sum"
    channel: Channel = field(default_factory=identity)
    topology: Topology = field(default_factory=OnePeer)

    def __post_init__(self) -> None:
        check_channel("PushSum", self.channel)
        check_graph("PushSum", self.topology)
        if self.channel.memory.remembers:
            raise ValueError(
                f"PushSum has new neighbours in each step, who cannot share a memory; got {self.channel.memory!r}: "
                f"write PushSum(Channel({self.channel.compressor!r}))"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def plain(self) -> PushSum:
        """The same graph in float32."""
        return PushSum(topology=self.topology)

    @property
    def remembers(self) -> bool:
        """A weight, where the graph is directed; it may turn out to be 1 for all ranks."""
        return self.topology.directed

    def check(self, n: int) -> None:
        """Refuse a W by which a rank keeps no share: without its sources it would have nothing to divide."""
        check_topology(self.topology, n)  # rows need not sum to one here
        if weighs(self.topology, n):
            for w in matrices(self.topology, n):
                empty = (w.diagonal() <= 0).nonzero()
                if len(empty):
                    i = int(empty[0])
                    raise ValueError(
                        f"W[{i}, {i}] = 0: rank {i} would give all of its weight away; "
                        "write (w + eye) / 2 in place of w"
                    )

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """w_i, where it can differ from one; float64, for the sake of the sum of weights over the ranks."""
        if not weighs(self.topology, comm.size):
            return {}
        return {"send.weight": Slot("rank", on_resize="reset", dtype=torch.float64, fill=1.0)}

    def start(self, x: Tensor, state: State) -> None:
        """Set every weight to one."""
        for tensor in state.values():
            tensor.fill_(1)

    def tail(self, n: int) -> int:
        """The weight, where it can differ from one."""
        return WEIGHT if weighs(self.topology, n) else 0

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The new model z_i'."""
        if "send.weight" in state:
            return await self._weighed(x, state["send.weight"], ctx)
        near = self.near(ctx)
        payload = self.channel.send(x.float(), {}, ctx)
        assert payload is not None
        messages = {**await trade(self.channel, payload, near, ctx), ctx.comm.rank: payload}
        return x + towards(self.channel, messages, near, x, ctx)

    async def _weighed(self, x: Tensor, weight: Tensor, ctx: Context) -> Tensor:
        """The new model, with weights."""
        assert ctx.before is not None
        near, me = self.near(ctx), ctx.comm.rank
        w = float(weight)
        y = w * ctx.before + (x - ctx.before)
        payload = self.channel.send(y.float(), {}, ctx)
        assert payload is not None
        tail = torch.tensor([w], dtype=torch.float64).view(torch.uint8).to(payload.data.device)
        arrived = await trade(self.channel, Payload(torch.cat((payload.data, tail))), near, ctx)
        taken = {j: near.sources[j] for j in arrived}
        # Ranks that broke off during the swap are in `gone` by now.
        given = sum(self._share(me, j, ctx) for j in near.peers if j not in ctx.comm.gone)
        messages = {j: replace(m, data=m.data[:-WEIGHT]) for j, m in arrived.items()}
        moved = weighted(self.channel, {**messages, me: payload}, {**taken, me: -given}, y, ctx)
        now = w - given * w + sum(taken[j] * _weight(j, m.data) for j, m in arrived.items())
        if now < LEAST:
            raise ValueError(
                f"the weight of rank {me} has fallen to {now:.1e}: the remaining ranks give it too little; "
                "write a topology in which every rank is reached in more than one way, such as Exponential()"
            )
        weight.fill_(now)
        return (y + moved) / now

    def _share(self, me: int, j: int, ctx: Context) -> float:
        """W_ji: what rank j takes of this one."""
        return self.topology.around(j, ctx.comm.size, ctx.key.step).sources[me]


@lru_cache(maxsize=256)
def weighs(topology: Topology, n: int) -> bool:
    """Whether weights can differ from one. They cannot where the rows of every W of a known period sum to one."""
    if not topology.directed:
        return False
    unseen = topology.period(n) is None
    return unseen or any(float((w.sum(1) - 1).abs().max()) > TOLERANCE for w in matrices(topology, n))


def _weight(j: int, message: Tensor) -> float:
    """The float64 at the end of a message."""
    w = float(message[-WEIGHT:].clone().view(torch.float64))
    if not (math.isfinite(w) and w > 0):
        raise PayloadError(f"rank {j} says that its weight is {w}: the message was damaged on the way")
    return w
