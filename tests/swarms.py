"""Swarms for tests of gossip: ranks that start together or apart, and how far their mean strays."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire import Layout
from thinwire.exchange import Gossip
from thinwire.lab.swarm import Swarm


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Gaussian, float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dyadic(*shape: int, seed: int = 0) -> Tensor:
    """Multiples of 1/64 below 4: float32 holds them, and means of a few of them, without rounding."""
    return torch.randint(-256, 256, shape, generator=torch.Generator().manual_seed(seed)).double() / 64


def together(exchange: Gossip, n: int, x: Tensor, layout: Layout | None = None) -> Swarm:
    """`n` ranks that start from `x`."""
    return Swarm(exchange, n, x, layout)


def apart(exchange: Gossip, models: Tensor, layout: Layout | None = None) -> Swarm:
    """One rank per row of `models`, in their precision; what ranks remember of each other starts at zero."""
    swarm = together(exchange, len(models), torch.zeros_like(models[0]), layout)
    swarm.models = models.clone()
    return swarm


def drift(swarm: Swarm, steps: int, size: float = 0.1) -> float:
    """How far the mean model strays in a step from the mean of the updates, at most, with random ones."""
    worst = 0.0
    for step in range(steps):
        updates = size * normal(*swarm.models.shape, seed=100 + step)
        due = swarm.mean + updates.mean(0)
        swarm.step(updates)
        worst = max(worst, float((swarm.mean - due).abs().max()))
    return worst
