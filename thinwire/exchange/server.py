"""Server: rank 0 gathers what all ranks send, and sends the result to each of them.

A call is a round in step: every other rank sends one payload to rank 0, which answers with the mean in float32. All
traffic passes rank 0, so that its links bound the pace; there is no reason to prefer this to `ScatterGather` but to
compare.

With a `rule` there are no rounds: rank 0 keeps a model, each worker pushes its gradients to it, and the rule decides
what becomes of them and who goes on (`thinwire.server`, `thinwire.engine.schedules.served`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel, empty
from thinwire.core.exchange import Exchange, Scope, part
from thinwire.exchange.all_reduce import AllReduce
from thinwire.server.rule import Rule

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State

SERVER = 0


def _identity() -> Channel:
    return Channel(Identity())


@final
@dataclass(frozen=True)
class Server(Exchange):
    """The mean over all ranks, made at rank 0; or, with a rule, a model that rank 0 keeps."""

    name: ClassVar[str] = "server"
    channel: Channel = field(default_factory=_identity)
    rule: Rule | None = None

    def __post_init__(self) -> None:
        check_channel("Server", self.channel)
        if self.rule is None:
            return
        if not isinstance(self.rule, Rule):
            raise TypeError(f"Server(rule=...) takes a rule; write rule=thinwire.server.Asgd(), not {self.rule!r}")
        if self.rule.sparse and self.channel.memory.remembers:
            raise ValueError(
                f"{self.rule.id} sends other elements in every push, and {self.channel.memory!r} remembers whole "
                f"vectors; write Server(Channel({self.channel.compressor!r}), {self.rule!r}), with no memory"
            )
        if self.channel.memory.skips or self.channel.memory.receiver_slots():
            raise ValueError(
                f"{self.channel.memory!r} needs a receiver that has heard every message of every worker; "
                "write ErrorFeedback(), or no memory"
            )

    @property
    def hops(self) -> dict[str, Channel]:
        """The way up; the way down is not compressed."""
        return {"": self.channel}

    @property
    def scope(self) -> Scope:
        """Rank 0."""
        return "server"

    @property
    def asynchronous(self) -> bool:
        """Where a rule takes gradients as they arrive."""
        return self.rule is not None

    @property
    def served(self) -> bool:
        """Where there is a rule."""
        return self.rule is not None

    @property
    def bounded(self) -> bool:
        """As its rule says."""
        return self.rule is not None and self.rule.bounded

    @property
    def local_steps(self) -> bool:
        """As its rule says."""
        return self.rule is not None and self.rule.local_steps

    def check(self, n: int) -> None:
        """What the rule refuses."""
        if self.rule is not None:
            self.rule.check(n)

    @property
    def plain(self) -> Exchange:
        """A sum of float32."""
        return AllReduce()

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        comm = ctx.comm
        payload = self.channel.send(x, part(state, "send."), ctx)
        mine = empty(x) if payload is None else payload.data
        if comm.rank != SERVER:
            await comm.send(SERVER, mine)
            return (await comm.recv(SERVER))[1].view(torch.float32)
        arrived = [mine, *[(await comm.recv(rank))[1] for rank in range(1, comm.size)]]
        mean = self.channel.receive(arrived, part(state, "recv."), ctx)
        for rank in range(1, comm.size):
            await comm.send(rank, mean.view(torch.uint8))
        return mean
