"""Swarm: n models in one process that gossip, step by step. For tests and reproductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from thinwire.comm.clock import VirtualClock
from thinwire.core.types import Layout, State
from thinwire.exchange.gossip import Gossip
from thinwire.lab.world import World


@final
class Swarm:
    """`n` ranks that start from `x`; the precision of `x` is that of the models.

    Messages are float32 at most. In float64, identities such as "the mean is that of plain SGD" can be tested.
    """

    def __init__(
        self,
        exchange: Gossip,
        n: int,
        x: Tensor,
        layout: Layout | None = None,
        seed: int = 0,
        *,
        clock: VirtualClock | None = None,
    ) -> None:
        exchange.check(n)
        self.exchange, self.n = exchange, n
        self.layout = layout or Layout.flat(x.numel())
        self.models = x.flatten().repeat(n, 1)  # one row per rank
        self.world = World(exchange, self.layout, n, seed, start=x.flatten().float(), clock=clock)

    def step(self, updates: Tensor | Sequence[Tensor]) -> None:
        """One local update per rank, row by row, then one exchange."""
        moved = torch.stack(list(updates)).to(self.models.dtype)
        early = self.exchange.before_step
        given = self.models if early else self.models + moved
        mixed = torch.stack(self.world.round(given, before=self.models)).to(self.models.dtype)
        self.models = mixed + moved if early else mixed

    @property
    def states(self) -> list[State]:
        """The states, by rank."""
        return self.world.states

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self.world.steps

    @property
    def bytes(self) -> int:
        """Bytes that all ranks have sent."""
        return self.world.bytes

    @property
    def messages(self) -> int:
        """Messages that all ranks have sent."""
        return self.world.messages

    @property
    def mean(self) -> Tensor:
        """The mean model."""
        return self.models.mean(0)

    @property
    def distance(self) -> float:
        """How far the models are from their mean: the root of the mean squared distance."""
        return float((self.models - self.mean).square().sum(1).mean().sqrt())
