"""Quadratics for a few ranks, for tests that train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.core.exchange import Exchange
from thinwire.core.types import Layout
from thinwire.exchange import AllGather
from thinwire.lab.world import World


def quick(exchange: Exchange, layout: Layout, n: int = 4) -> World:
    """Ranks that train, where an all-gather is decoded by rank 0 alone.

    That all ranks get the same bits is tested for every method, in methods/test_every_method.py.
    """
    return World(exchange, layout, n, once=isinstance(exchange, AllGather))


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
