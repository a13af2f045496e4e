"""Mix: every rank moves towards what it hears from its neighbours. D-PSGD, CHOCO-SGD and DeepSqueeze do this.

Sends one payload to every neighbour in every step. With m_j what is decoded from rank j, and W the mixing matrix:

    x_i = x_half_i + eta sum_j W_ij (m_j - m_i)

What m_j stands for is the memory's choice:

    none            m_j = C(x_half_j)                                   D-PSGD for C = identity and eta = 1
    error feedback  m_j = C(x_half_j + e_j), e_j keeps the rest         DeepSqueeze
    difference      m_j = h_j, where h_j += C(x_half_j - h_j)           CHOCO-SGD

The columns of W - I sum to zero, so the mean of the models is that of plain SGD, whatever C does. A difference needs
no copy of each neighbour: a rank keeps its own h_i and d_i = sum_j W_ij (h_j - h_i), which moves by what it decodes.
Both are float64: rounding differs at the two ends of an edge, and added up it would keep models apart. `copies` keeps
every neighbour's h_j instead, so that a neighbour can be dropped.

With `early` the models before the step are mixed, which can be sent while backward runs.

Without `eta` it is chosen (thinwire/exchange/eta.py). Where whole models are sent, it then follows the length of the
local step, |x_half_i - x_i| / |x_half_i|, what the message scatters, |m_i - x_half_i|^2 / |x_half_i|^2, and what is
held back, |e_i| / |x_half_i|. A payload has the eta of its sender behind it, 4 bytes as float32, and both ends of an
edge take the smaller of their two: it is the same number at both, so that the mean is kept. On directed graphs and
with `early` there is nothing that both ends could know, and eta is that of a usual step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.channel import Channel, check_channel
from thinwire.core.errors import PayloadError
from thinwire.core.exchange import part
from thinwire.core.payload import Payload
from thinwire.core.slots import SUM, Slot
from thinwire.exchange.eta import EXACT, USUAL, Pace, check_eta, lag_eta, pace
from thinwire.exchange.gossip import Gossip, check_fixed, check_graph, identity, towards, trade
from thinwire.exchange.loop import scatter
from thinwire.topology.base import Topology
from thinwire.topology.ring import Ring

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Context, Layout, State
    from thinwire.topology.base import Around

ETA = 4  # bytes behind a payload


@final
@dataclass(frozen=True)
class Mix(Gossip):
    """Towards the neighbours by `eta`; None chooses it from the compressor and the graph."""

    name: ClassVar[str] = "mix"
    channel: Channel = field(default_factory=identity)
    topology: Topology = field(default_factory=Ring)
    eta: float | None = None
    early: bool = False
    copies: bool = False

    def __post_init__(self) -> None:
        check_channel("Mix", self.channel)
        check_graph("Mix", self.topology)
        check_eta("Mix", self.eta)
        memory = self.channel.memory
        if not memory.for_models:
            raise ValueError(
                f"Mix keeps models, and {memory!r} is for gradients; write Channel(..., ErrorFeedback())"
            )
        if not memory.whole and memory.settles:
            raise ValueError(f"Mix follows what was sent; got {memory!r}: write Difference()")
        if not memory.whole:
            raise ValueError(f"Mix sends models, of which nothing may decay; got {memory!r}: write ErrorFeedback()")
        if self.copies and not memory.settles:
            raise ValueError(
                "Mix(copies=True) is for Channel(..., Difference()); without it there is nothing to copy"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": self.channel}

    @property
    def before_step(self) -> bool:
        """As `early` says."""
        return self.early

    @property
    def plain(self) -> Mix:
        """The same graph, float32."""
        return Mix(topology=self.topology, early=self.early)

    @property
    def cannot_drop(self) -> str:
        """A sum over neighbours cannot forget one; where edges have a direction, the mean would move."""
        if self.topology.directed:
            return "write topology=Ring(), or sgp()"
        light = self.channel.memory.settles and not self.copies
        return "write copies=True, which keeps a copy of every neighbour's estimate" if light else ""

    def check(self, n: int) -> None:
        """What both ends remember needs the same neighbours in every step."""
        if self.channel.memory.settles:
            check_fixed("a difference", self.topology, n)
        else:
            super().check(n)

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """The sender's memory; for a difference also d_i, or one copy per neighbour, of another graph no use."""
        slots = {f"send.{name}": slot for name, slot in self.channel.memory.slots().items()}
        if self.channel.memory.settles:
            near = self.topology.around(comm.rank, comm.size)
            names = [f"recv.shift.{j}" for j in near.sources] if self.copies else ["recv.pull"]
            slots |= dict.fromkeys(names, Slot(on_resize="reset", dtype=SUM))
        return slots

    def start(self, x: Tensor, state: State) -> None:
        """Every estimate starts at the common model, so that at first nothing pulls."""
        for name, tensor in state.items():
            if "shift" in name:
                tensor.copy_(x)

    def tail(self, n: int) -> int:
        """Where it follows the step, eta."""
        return ETA if self.follows else 0

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The model after mixing."""
        near = self.near(ctx)
        payload = self.channel.send(x.float(), part(state, "send."), ctx)
        assert payload is not None
        if self.follows:
            return x + await self._following(payload, near, x, part(state, "send."), ctx)
        messages = {**await trade(self.channel, payload, near, ctx), ctx.comm.rank: payload}
        if self.copies:
            pull = self._copied(messages, near, x, state, ctx)
        elif self.channel.memory.settles:
            pull = state["recv.pull"]
            pull += towards(self.channel, messages, near, pull, ctx)
        else:
            pull = towards(self.channel, messages, near, x, ctx)
        return x + self.step(ctx.comm.size) * pull.to(x.dtype)

    @property
    def follows(self) -> bool:
        """Whether eta follows the local step."""
        fixed = self.eta is not None or self.early or self.topology.directed
        return not (fixed or self.channel.memory.settles) and scatter(self.channel.compressor) > EXACT

    def step(self, n: int, ratio: float = USUAL) -> float:
        """Eta as given, or as chosen for `n` ranks; where it follows the step, for steps of `ratio` of a model."""
        if self.eta is not None:
            return self.eta
        if self.channel.memory.settles:
            return lag_eta(self.channel.compressor, self.topology, n)
        return self.pace(n).at(ratio)

    def pace(self, n: int) -> Pace:
        """How the chosen eta follows the step."""
        return pace(self.channel.compressor, self.topology, n)

    async def _following(self, payload: Payload, near: Around, x: Tensor, memory: State, ctx: Context) -> Tensor:
        """sum_j eta_ij W_ij (m_j - m_i), eta_ij the smaller of both."""
        me = ctx.comm.rank
        tail = torch.tensor([self._eta(payload, x, memory, ctx)])
        mine = float(tail)  # as float32 has it, and so as the neighbours do
        sent = Payload(torch.cat((payload.data, tail.view(torch.uint8).to(payload.data.device))))
        arrived = await trade(self.channel, sent, near, ctx)
        etas = {j: min(mine, _told(j, m.data)) for j, m in arrived.items()}
        messages = {j: replace(m, data=m.data[:-ETA]) for j, m in arrived.items()}
        near = near._replace(sources={j: near.sources[j] * eta for j, eta in etas.items()})
        return towards(self.channel, {**messages, me: payload}, near, x, ctx)

    def _eta(self, payload: Payload, x: Tensor, memory: State, ctx: Context) -> float:
        """What this rank would take; 0 where its model is not finite."""
        with ctx.clock.span("decode"):
            m = self.channel.encoder.decode(payload, ctx.layout, key=ctx.key)
        length, scattered = _length(x), _length(m.to(x.dtype) - x)
        moved = 0.0 if ctx.before is None else _length(x - ctx.before)
        held = sum(_length(e) for e in memory.values())
        if not math.isfinite(length + scattered + moved + held):
            return 0.0
        if not length:
            return self.pace(ctx.comm.size).at(0.0)
        return self.pace(ctx.comm.size).at(min(1.0, moved / length), (scattered / length) ** 2, held / length)

    def _copied(self, messages: dict[int, Payload], near: Around, x: Tensor, state: State, ctx: Context) -> Tensor:
        """sum_j W_ij (h_j - h_i) over those that answered."""
        mine = state["send.shift"]
        pull = torch.zeros_like(mine)
        with ctx.clock.span("decode"):
            for j in sorted(near.sources.keys() & messages.keys()):
                copy = state[f"recv.shift.{j}"]
                copy += self.channel.encoder.decode(messages[j], ctx.layout, key=ctx.key)
                pull += near.sources[j] * (copy - mine)
        return pull


def _length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _told(j: int, message: Tensor) -> float:
    """The float32 at the end of a message."""
    eta = float(message[-ETA:].clone().view(torch.float32))
    if not 0 <= eta <= 1:
        raise PayloadError(f"rank {j} says that its eta is {eta}: the message was damaged on its way")
    return eta
