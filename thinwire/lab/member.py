"""Member: one rank around one exchange, with its state. Under any driver, step by step."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from thinwire.core.clock import Clock
from thinwire.core.comm import Comm
from thinwire.core.exchange import Exchange
from thinwire.core.types import Context, Key, Layout
from thinwire.exchange.all_gather import AllGather
from thinwire.exchange.gossip import Gossip
from thinwire.exchange.proximal import Proximal


@final
class Member:
    """The rank of `comm`; `seed` decides its noise. Where models are exchanged, `start` is the model of all ranks."""

    def __init__(
        self,
        exchange: Exchange,
        layout: Layout,
        comm: Comm,
        seed: int = 0,
        *,
        start: Tensor | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.exchange, self.layout, self.comm, self.seed = exchange, layout, comm, seed
        self.state = exchange.init(layout, comm, device)
        if start is not None and isinstance(exchange, Gossip):
            exchange.start(start, self.state)

    async def step(
        self,
        x: Tensor,
        step: int,
        *,
        before: Tensor | None = None,
        motion: tuple[float, ...] = (),
        clock: Clock | None = None,
    ) -> Tensor:
        """Exchange `x`, which may be changed; `before` is the model before the local step, where it is a model."""
        ctx = self._context(step, before, motion, clock)
        if isinstance(self.exchange, Proximal):
            await self.exchange.begin(x, self.state, ctx)
        return await self.exchange(x, self.state, ctx)

    async def give(self, x: Tensor, step: int, *, motion: tuple[float, ...] = (), clock: Clock | None = None) -> None:
        """Take part in an all-gather, and decode nothing."""
        assert isinstance(self.exchange, AllGather)
        await self.exchange.gather(x, self.state, self._context(step, None, motion, clock))

    def _context(self, step: int, before: Tensor | None, motion: tuple[float, ...], clock: Clock | None) -> Context:
        key = Key(self.seed, step, self.comm.rank)
        return Context(self.comm, self.layout, key, clock or Clock(), before=before, motion=motion)
