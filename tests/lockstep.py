"""A few virtual ranks that keep their states from step to step, for tests that train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire import Context, Key, Layout
from thinwire.comm import Comm, run
from thinwire.core.clock import Clock
from thinwire.core.exchange import Exchange
from thinwire.core.types import State
from thinwire.kernels.length import square_length


@dataclass
class World:
    """`n` ranks around one exchange; every step checks that all of them get the same bits."""

    exchange: Exchange
    layout: Layout
    n: int = 4
    states: dict[int, State] = field(default_factory=dict)
    steps: int = 0
    nbytes: int = 0  # sent by rank 0
    uploads: int = 0  # of all ranks, where the memory may skip
    motion: tuple[float, ...] = ()  # as if every result became a step of plain SGD

    def step(self, xs: list[Tensor]) -> Tensor:
        """Exchange rank i's `xs[i]`."""

        clocks = [Clock() for _ in range(self.n)]

        async def program(comm: Comm) -> Tensor:
            if comm.rank not in self.states:
                self.states[comm.rank] = self.exchange.init(self.layout, comm)
            key = Key(seed=1, step=self.steps, rank=comm.rank)
            ctx = Context(comm, self.layout, key, clocks[comm.rank], motion=self.motion)
            return await self.exchange(xs[comm.rank].clone(), self.states[comm.rank], ctx)

        done = run(program, self.n)
        self.steps += 1
        self.nbytes += done.traffic[0].bytes
        first = done.results[0]
        assert all(same(first, other) for other in done.results)
        assert first.dtype == torch.float32
        self.uploads += sum(span.what == "upload" for clock in clocks for span in clock.spans)
        self.motion = (square_length(first) / max(1, first.numel()), *self.motion[:9])
        return first

    def mean(self, name: str) -> Tensor:
        """A state that all ranks have, averaged."""
        return torch.stack([self.states[rank][name] for rank in range(self.n)]).mean(0)

    def joined(self, name: str) -> Tensor:
        """A state that each owner keeps for its shard, put together."""
        return torch.cat([self.states[rank][name] for rank in range(self.n)])

    def rescale(self, factor: float) -> None:
        """Tell the exchange that the learning rate has changed by 1/`factor`."""
        for state in self.states.values():
            self.exchange.rescale(state, factor)


def same(a: Tensor, b: Tensor) -> bool:
    """The same bits, NaN included."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@dataclass
class Quadratics:
    """f_i(x) = 1/2 (x - c_i)' A_i (x - c_i), one per rank. Gradients do not vanish at the optimum of the mean."""

    n: int = 4
    d: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.seed)
        roots = torch.randn(self.n, self.d, self.d, generator=g, dtype=torch.float64) / self.d**0.5
        self.a = roots @ roots.mT + 0.5 * torch.eye(self.d, dtype=torch.float64)
        self.c = torch.randn(self.n, self.d, generator=g, dtype=torch.float64)
        pulls = (self.a @ self.c[..., None]).mean(0)[:, 0]
        self.optimum = torch.linalg.solve(self.a.mean(0), pulls)
        self.smooth = float(torch.linalg.eigvalsh(self.a).max())

    def grads(self, x: Tensor) -> list[Tensor]:
        """Every rank's gradient, float32."""
        return list((self.a @ (x - self.c)[..., None])[..., 0].float())

    def descend(self, world: World, lr: float, steps: int, check: Callable[[], None] = lambda: None) -> float:
        """|x - optimum|^2 / |optimum|^2 after gradient descent from zero with exchanged gradients."""
        x = self.path(world, lr, steps, check)
        return float((x - self.optimum).square().sum() / self.optimum.square().sum())

    def path(self, world: World, lr: float, steps: int, check: Callable[[], None] = lambda: None) -> Tensor:
        """Where gradient descent from zero with exchanged gradients ends."""
        x = torch.zeros(self.d, dtype=torch.float64)
        for _ in range(steps):
            x = x - lr * world.step(self.grads(x)).double()
            check()
        return x

    def loss(self, x: Tensor) -> float:
        """The mean of the f_i at x, above its minimum."""
        y = x - self.optimum
        return float(y @ self.a.mean(0) @ y) / 2
