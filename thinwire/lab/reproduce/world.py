"""World: virtual ranks around one exchange, step by step, with the bytes that each of them sent."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from thinwire.comm.virtual import run
from thinwire.core.clock import Clock
from thinwire.core.comm import Comm
from thinwire.core.exchange import Exchange
from thinwire.core.types import Context, Key, Layout
from thinwire.kernels.length import square_length

DEPTH = 10  # how many past steps lazy memories are told about


@final
class World:
    """`n` ranks that keep their states; `seed` decides their noise."""

    def __init__(self, exchange: Exchange, layout: Layout, n: int, seed: int = 0) -> None:
        self.exchange, self.layout, self.n, self.seed = exchange, layout, n, seed
        self.states = [exchange.init(layout, Comm(rank, n)) for rank in range(n)]
        self.steps = 0
        self.bytes = 0  # sent by all ranks
        self.uploads = 0  # of all ranks, where the memory may skip
        self.motion: tuple[float, ...] = ()  # as if every result became a step of plain SGD

    def step(self, xs: Tensor) -> Tensor:
        """Exchange the rows of `xs`, one per rank; returns what rank 0 gets, which is what all get."""
        clocks = [Clock() for _ in range(self.n)]

        async def program(comm: Comm) -> Tensor:
            key = Key(self.seed, self.steps, comm.rank)
            ctx = Context(comm, self.layout, key, clocks[comm.rank], motion=self.motion)
            return await self.exchange(xs[comm.rank].float().clone(), self.states[comm.rank], ctx)

        done = run(program, self.n)
        out: Tensor = done.results[0]
        self.steps += 1
        self.bytes += sum(traffic.bytes for traffic in done.traffic)
        self.uploads += sum(span.what == "upload" for clock in clocks for span in clock.spans)
        self.motion = (square_length(out) / out.numel(), *self.motion[: DEPTH - 1])
        return out

    def rescale(self, factor: float) -> None:
        """Tell the exchange that the learning rate has become 1/`factor` of what it was."""
        for state in self.states:
            self.exchange.rescale(state, factor)

    @property
    def bits(self) -> float:
        """Bits that a rank sent per element and step."""
        return 8 * self.bytes / self.n / max(1, self.steps) / self.layout.numel

    @property
    def finite(self) -> bool:
        """Whether no state has overflowed."""
        return all(bool(torch.isfinite(t).all()) for state in self.states for t in state.values())
