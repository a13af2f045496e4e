"""World: ranks in one process around one exchange, step by step, and what they have sent."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, final

import torch
from torch import Tensor

from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import INSTANT
from thinwire.core.clock import Clock
from thinwire.core.comm import Traffic
from thinwire.core.exchange import Exchange
from thinwire.core.types import Layout, State
from thinwire.exchange.all_gather import AllGather
from thinwire.kernels.length import square_length
from thinwire.lab.member import Member

DEPTH = 10  # how many past steps lazy memories are told about


@final
class World:
    """`n` ranks that keep their states; `seed` decides their noise, and `clock` what takes time: nothing, if None.

    All ranks of an all-gather decode the same messages in the same order. With `once` only rank 0 does, which gives
    the same mean in a fraction of the time; what the others would remember of messages stays as it began.
    """

    def __init__(
        self,
        exchange: Exchange,
        layout: Layout,
        n: int = 4,
        seed: int = 1,
        *,
        start: Tensor | None = None,
        clock: VirtualClock | None = None,
        once: bool = False,
    ) -> None:
        if once and not isinstance(exchange, AllGather):
            raise ValueError(
                f"messages are decoded once for all in an AllGather only; got {exchange!r}: leave once out"
            )
        self.exchange, self.layout, self.n, self.once = exchange, layout, n, once
        self.clock = clock or VirtualClock(n, INSTANT)
        self.members = [Member(exchange, layout, self.clock.comm(rank), seed, start=start) for rank in range(n)]
        self.steps = 0
        self.uploads = 0  # of all ranks, where the memory may skip
        self.motion: tuple[float, ...] = ()  # as if every result became a step of plain SGD

    def step(self, xs: Tensor | Sequence[Tensor]) -> Tensor:
        """Exchange rank i's `xs[i]`, of which copies are made; returns what all ranks get."""
        out, *others = self.round([x.float() for x in xs])
        assert out.dtype == torch.float32
        assert self.once or all(torch.equal(out.view(torch.int32), o.view(torch.int32)) for o in others)
        self.motion = (square_length(out) / max(1, out.numel()), *self.motion[: DEPTH - 1])
        return out

    def round(self, xs: Tensor | Sequence[Tensor], before: Tensor | Sequence[Tensor] | None = None) -> list[Tensor]:
        """The same where ranks differ: what each of them gets. `before` are their models before the local step."""
        clocks = [Clock() for _ in self.members]
        tasks = [self.clock.spawn(rank, self._part(rank, xs, before, clock)) for rank, clock in enumerate(clocks)]
        self.clock.run()
        self.steps += 1
        self.uploads += sum(span.what == "upload" for clock in clocks for span in clock.spans)
        return [task.result for task in tasks]

    def _part(
        self, rank: int, xs: Tensor | Sequence[Tensor], before: Tensor | Sequence[Tensor] | None, clock: Clock
    ) -> Coroutine[Any, Any, Any]:
        member, x = self.members[rank], xs[rank].clone()
        if self.once and rank:
            return member.give(x, self.steps, motion=self.motion, clock=clock)
        was = None if before is None else before[rank]
        return member.step(x, self.steps, before=was, motion=self.motion, clock=clock)

    def rescale(self, factor: float) -> None:
        """Tell the exchange that the learning rate has become 1/`factor` of what it was."""
        for state in self.states:
            self.exchange.rescale(state, factor)

    @property
    def states(self) -> list[State]:
        """The states, by rank."""
        return [member.state for member in self.members]

    def mean(self, name: str) -> Tensor:
        """A state that all ranks have, averaged."""
        return torch.stack([state[name] for state in self.states]).mean(0)

    def joined(self, name: str) -> Tensor:
        """A state that each owner keeps for its shard, put together."""
        return torch.cat([state[name] for state in self.states])

    @property
    def finite(self) -> bool:
        """Whether no state has overflowed."""
        return all(bool(torch.isfinite(t).all()) for state in self.states for t in state.values())

    @property
    def traffic(self) -> list[Traffic]:
        """What each rank has sent."""
        return self.clock.traffic

    @property
    def bytes(self) -> int:
        """Bytes that all ranks have sent."""
        return sum(traffic.bytes for traffic in self.traffic)

    @property
    def messages(self) -> int:
        """Messages that all ranks have sent."""
        return sum(traffic.messages for traffic in self.traffic)

    @property
    def bits(self) -> float:
        """Bits that a rank sent per element and step."""
        return 8 * self.bytes / self.n / max(1, self.steps) / self.layout.numel

    @property
    def message_bits(self) -> float:
        """Bits per element of a message, with its header."""
        return 8 * self.bytes / max(1, self.messages) / self.layout.numel
