"""Mix: every rank moves towards what it hears from its neighbours. D-PSGD, CHOCO-SGD and DeepSqueeze do this.

Sends one payload to every neighbour in every step. With m_j what is decoded from rank j, and W the mixing matrix:

    x_i = x_half_i + eta sum_j W_ij (m_j - m_i)

What m_j stands for is the memory's choice:

    none            m_j = C(x_half_j)                                   D-PSGD for C = identity and eta = 1
    error feedback  m_j = C(x_half_j + e_j), e_j keeps the rest         DeepSqueeze
    difference      m_j = h_j, where h_j += C(x_half_j - h_j)           CHOCO-SGD

The columns of W - I sum to zero, so the mean of the models is that of plain SGD, whatever C does. A difference needs
no copy of each neighbour: a rank keeps its own h_i and d_i = sum_j W_ij (h_j - h_i), which moves by what it decodes.
(Near consensus d_i is small, and with it its rounding; s_i = sum_j W_ij h_j would pull the mean along by the rounding
of a whole model.) `copies` keeps every neighbour's h_j instead, so that a neighbour can be dropped.

With `early` the models before the step are mixed, which can be sent while backward runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.channel import Channel, check_channel
from thinwire.core.exchange import part
from thinwire.core.memory import NoMemory
from thinwire.exchange.eta import check_eta, chosen_eta
from thinwire.exchange.gossip import Gossip, check_fixed, check_graph, identity, towards, trade
from thinwire.memory.difference import Difference
from thinwire.memory.error_feedback import ErrorFeedback
from thinwire.topology.base import Topology
from thinwire.topology.ring import Ring

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.comm.base import Comm
    from thinwire.core.payload import Payload
    from thinwire.core.types import Context, Layout, State
    from thinwire.topology.base import Around


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
        if not isinstance(memory, NoMemory | ErrorFeedback | Difference):
            raise ValueError(
                f"Mix keeps models, and {memory!r} is for gradients; write Channel(..., ErrorFeedback())"
            )
        if isinstance(memory, ErrorFeedback) and (memory.alpha, memory.beta) != (1, 1):
            raise ValueError(f"Mix sends models, of which nothing may decay; got {memory!r}: write ErrorFeedback()")
        if isinstance(memory, Difference) and memory.alpha != 1:
            raise ValueError(f"Mix follows what was sent; got {memory!r}: write Difference()")
        if self.copies and not isinstance(memory, Difference):
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
        light = isinstance(self.channel.memory, Difference) and not self.copies
        return "write copies=True, which keeps a copy of every neighbour's estimate" if light else ""

    def check(self, n: int) -> None:
        """What both ends remember needs the same neighbours in every step."""
        if isinstance(self.channel.memory, Difference):
            check_fixed("a difference", self.topology, n)
        else:
            super().check(n)

    def init(self, layout: Layout, comm: Comm, device: torch.device | None = None) -> State:
        """The sender's memory; for a difference also d_i, or one copy per neighbour."""
        like = torch.zeros(layout.numel, device=device)
        state = {f"send.{name}": tensor for name, tensor in self.channel.memory.init(like).items()}
        if isinstance(self.channel.memory, Difference):
            near = self.topology.around(comm.rank, comm.size)
            names = [f"recv.shift.{j}" for j in near.sources] if self.copies else ["recv.pull"]
            state |= {name: torch.zeros_like(like) for name in names}
        return state

    def start(self, x: Tensor, state: State) -> None:
        """Every estimate starts at the common model, so that at first nothing pulls."""
        for name, tensor in state.items():
            if "shift" in name:
                tensor.copy_(x)

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The model after mixing."""
        near = self.near(ctx)
        payload = self.channel.send(x.float(), part(state, "send."), ctx)
        assert payload is not None
        messages = {**await trade(self.channel, payload, near, ctx), ctx.comm.rank: payload}
        if self.copies:
            pull = self._copied(messages, near, x, state, ctx)
        elif isinstance(self.channel.memory, Difference):
            pull = state["recv.pull"]
            pull += towards(self.channel, messages, near, pull, ctx)
        else:
            pull = towards(self.channel, messages, near, x, ctx)
        return x + self.step(ctx.comm.size) * pull.to(x.dtype)

    def step(self, n: int) -> float:
        """Eta as given, or as chosen for `n` ranks."""
        if self.eta is not None:
            return self.eta
        settles = isinstance(self.channel.memory, Difference)
        return chosen_eta(self.channel.compressor, self.topology, n, settles=settles)

    def _copied(self, messages: dict[int, Payload], near: Around, x: Tensor, state: State, ctx: Context) -> Tensor:
        """sum_j W_ij (h_j - h_i) over those that answered."""
        mine = state["send.shift"].to(x.dtype)
        pull = torch.zeros_like(x)
        with ctx.clock.span("decode"):
            for j in sorted(near.sources.keys() & messages.keys()):
                copy = state[f"recv.shift.{j}"]
                self.channel.encoder.decode_add(messages[j], ctx.layout, copy, key=ctx.key)
                pull += near.sources[j] * (copy.to(x.dtype) - mine)
        return pull
