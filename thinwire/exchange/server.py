"""Server: ranks send to whoever keeps the model, or makes the mean, and are answered.

Without a `rule` a call is a round in step: every other rank sends one payload to rank 0, which answers with the mean,
in float32 or through `down`. All traffic passes rank 0, so that its links bound the pace; there is no reason to
prefer this to `ScatterGather` but to compare.

With a `rule` there are no rounds. The model is cut at its tensors into shards, each worker pushes the parts of its
gradient to those who serve them, and the rule decides what becomes of them and who goes on (`thinwire.server`,
`thinwire.engine.schedules.served`):

    Server(rule=Asgd())                every rank serves a shard beside its own training
    Server(rule=Asgd(), servers=2)     the last two ranks only serve, and the others only train
    Server(rule=Asgd(), shards=1)      rank 0 serves all of the model beside its own training
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel, check_channel, empty
from thinwire.core.exchange import Exchange, Scope, part
from thinwire.exchange.all_reduce import AllReduce
from thinwire.server.rule import Rule

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.slots import Slot
    from thinwire.core.types import Context, Layout, State

SERVER = 0


def _identity() -> Channel:
    return Channel(Identity())


@final
@dataclass(frozen=True)
class Server(Exchange):
    """The mean over all ranks, made at rank 0; or, with a rule, a model that some ranks keep."""

    name: ClassVar[str] = "server"
    channel: Channel = field(default_factory=_identity)
    rule: Rule | None = None
    down: Channel | None = None
    servers: int | None = None
    shards: int | None = None

    def __post_init__(self) -> None:
        check_channel("Server", self.channel)
        if self.down is not None:
            check_channel("Server", self.down)
        if self.rule is None:
            if self.servers is not None or self.shards is not None:
                raise ValueError("servers and shards are for a rule; write Server(rule=thinwire.server.Asgd(), ...)")
            return
        if not isinstance(self.rule, Rule):
            raise TypeError(f"Server(rule=...) takes a rule; write rule=thinwire.server.Asgd(), not {self.rule!r}")
        if self.rule.words and self.down is not None:
            raise ValueError(
                f"{self.rule.id} says itself how models are sent; write Server(..., rule=...) without down"
            )
        if self.rule.forgets and self.channel.memory.remembers:
            raise ValueError(
                f"{self.rule.id} sends something else in every push, to which {self.channel.memory!r} must not add "
                f"what an earlier one lost; write Server(Channel({self.channel.compressor!r}), {self.rule!r})"
            )
        for channel in self.hops.values():
            if channel.memory.skips or channel.memory.receiver_slots():
                raise ValueError(
                    f"{channel.memory!r} needs a receiver that has heard every message of every worker; "
                    "write ErrorFeedback(), or no memory"
                )
        if self.rule.whole and max(self.servers or 1, self.shards or 1) > 1:
            raise ValueError(
                f"Server(servers={self.servers}, shards={self.shards}): {self.rule.id} waits for several workers, "
                "and shards might wait for different ones; write servers=1, or neither"
            )
        if self.servers is not None and (self.servers < 1 or self.shards is not None):
            raise ValueError(
                f"Server(servers={self.servers}, shards={self.shards}): write servers=1 or more for ranks that only "
                "serve, each a shard, or shards=1 or more for ranks that serve beside their training"
            )
        if self.shards is not None and self.shards < 1:
            raise ValueError(f"Server(shards={self.shards}): write 1, for a model that rank 0 keeps, or more")

    @property
    def hops(self) -> dict[str, Channel]:
        """The way up, and the way down where it is compressed."""
        return {"": self.channel} if self.down is None else {"": self.channel, "down.": self.down}

    def workers(self, n: int) -> int:
        """How many of `n` ranks train: the first ones."""
        return n - (self.servers or 0)

    def serving(self, n: int) -> tuple[int, ...]:
        """Which of `n` ranks serve."""
        if self.servers is not None:
            return tuple(range(n - self.servers, n))
        return (SERVER,) if self.rule is not None and self.rule.whole else tuple(range(self.shards or n))

    @property
    def scope(self) -> Scope:
        """Those that serve."""
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

    @property
    def takes_ways(self) -> bool:
        """As its rule says."""
        return self.rule is not None and self.rule.takes_ways

    def check(self, n: int) -> None:
        """What the rule refuses, and servers without workers."""
        if self.rule is None:
            return
        if self.workers(n) < 1:
            raise ValueError(
                f"Server(servers={self.servers}) leaves none of {n} ranks to train; write fewer, or None"
            )
        if self.shards is not None and self.shards > n:
            raise ValueError(f"Server(shards={self.shards}) on {n} ranks: write at most {n}, or None for all of them")
        self.rule.check(self.workers(n))

    @property
    def plain(self) -> Exchange:
        """A sum of float32."""
        return AllReduce()

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """The memory of the way down lies where the mean is made."""
        found = super().slots(layout, comm)
        return found if comm.rank == SERVER else {k: v for k, v in found.items() if not k.startswith("down.send.")}

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The mean over ranks."""
        comm = ctx.comm
        payload = self.channel.send(x, part(state, "send."), ctx)
        mine = empty(x) if payload is None else payload.data
        if comm.rank != SERVER:
            await comm.send(SERVER, mine)
            return self._heard((await comm.recv(SERVER))[1].to(x.device), state, ctx)
        arrived = [mine, *[(await comm.recv(rank))[1].to(x.device) for rank in range(1, comm.size)]]
        mean = self.channel.receive(arrived, part(state, "recv."), ctx)
        answer = mean.view(torch.uint8)
        if self.down is not None:
            back = self.down.send(mean, part(state, "down.send."), _way_down(ctx))
            answer = empty(x) if back is None else back.data
        for rank in range(1, comm.size):
            await comm.send(rank, answer)
        return self._heard(answer, state, ctx)

    def _heard(self, data: Tensor, state: State, ctx: Context) -> Tensor:
        if self.down is None:
            return data.view(torch.float32)
        return self.down.receive([data], part(state, "down.recv."), _way_down(ctx))


def _way_down(ctx: Context) -> Context:
    """With noise of its own, the same on all ranks."""
    return replace(ctx, key=ctx.key.fold(hop=ctx.key.hop + 1, rank=SERVER))
