"""Swarm: n models in one process that gossip on the virtual driver, step by step. For tests and reproductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from thinwire.comm.virtual import run
from thinwire.core.comm import Comm
from thinwire.core.types import Context, Key, Layout
from thinwire.exchange.gossip import Gossip

SUMS = ("recv.pull", "recv.estimate")  # sums of what was decoded; everything else is float32, as at the sender


@final
class Swarm:
    """`n` ranks that start from `x`; the precision of `x` is that of the models.

    In float64, what a rank sums up from its neighbours is float64 as well; messages are float32 at most. Identities
    such as "the mean is that of plain SGD" are tested this way.
    """

    def __init__(self, exchange: Gossip, n: int, x: Tensor, layout: Layout | None = None, seed: int = 0) -> None:
        exchange.check(n)
        self.exchange, self.n, self.seed = exchange, n, seed
        self.layout = layout or Layout.flat(x.numel())
        self.models = x.flatten().repeat(n, 1)  # one row per rank
        self.steps = 0
        self.bytes = 0  # sent by all ranks
        self.messages = 0
        self.states = []
        for rank in range(n):
            state = exchange.init(self.layout, Comm(rank, n))
            exchange.start(x.flatten().float(), state)
            self.states.append({name: t.to(x.dtype) if name in SUMS else t for name, t in state.items()})

    def step(self, updates: Tensor | Sequence[Tensor]) -> None:
        """One local update per rank, row by row, then one exchange."""
        moved = torch.stack(list(updates)).to(self.models.dtype)
        early = self.exchange.before_step
        before = self.models
        given = before if early else before + moved

        async def program(comm: Comm) -> Tensor:
            key = Key(self.seed, self.steps, comm.rank)
            ctx = Context(comm, self.layout, key, before=before[comm.rank])
            return await self.exchange(given[comm.rank].clone(), self.states[comm.rank], ctx)

        done = run(program, self.n)
        mixed = torch.stack(done.results).to(self.models.dtype)
        self.models = mixed + moved if early else mixed
        self.steps += 1
        self.bytes += sum(traffic.bytes for traffic in done.traffic)
        self.messages += sum(traffic.messages for traffic in done.traffic)

    @property
    def mean(self) -> Tensor:
        """The mean model."""
        return self.models.mean(0)

    @property
    def distance(self) -> float:
        """How far the models are from their mean: the root of the mean squared distance."""
        return float((self.models - self.mean).square().sum(1).mean().sqrt())
