"""Data-parallel training on the digits in one process: n virtual ranks, one model, all parameters exchanged.

    g_i = gradient of rank i's batch;    m = 0.9 m + exchange(g_1, ..., g_n);    x = x - lr m

The net is fully connected, 64-128-128-10: 26,122 parameters. The rate falls on a straight line to 5% and residuals
follow it, as under `attach`. Unlike `attach`, it leaves no tensor uncompressed: biases are compressed too. A run that
is no longer finite stops, and its figures are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from thinwire.core.exchange import Exchange
from thinwire.core.types import Layout
from thinwire.exchange.all_reduce import AllReduce
from thinwire.lab import tasks
from thinwire.lab.records import Row
from thinwire.lab.step_sizes import END, MOMENTUM
from thinwire.lab.world import World

HUGE = 1e6  # the size of one weight at which a run stops


@dataclass(frozen=True)
class Plan:
    """How a run is trained: `batch` images per rank and step."""

    epochs: int
    seed: int = 0
    workers: int = 4
    batch: int = 16
    lr: float = 0.05
    whole: bool = False  # the exchange sees one vector, not tensors
    cold: int = 0  # epochs of float32 before the exchange is used


def start(seed: int) -> nn.Module:
    """The net with that seed's weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )


def train(exchange: Exchange, plan: Plan) -> Row:
    """Accuracy on the test images, the last epoch's training loss and what was sent."""
    data, model = digits(), start(plan.seed)
    params: list[Tensor] = list(model.parameters())
    layout = Layout.of(model.named_parameters())
    seen = Layout.flat(layout.numel) if plan.whole else layout
    worlds = [World(how, seen, plan.workers, plan.seed) for how in (AllReduce(), exchange)]
    per_epoch = len(data.train_y) // (plan.batch * plan.workers)
    steps = plan.epochs * per_epoch
    momentum, lr = torch.zeros(layout.numel), plan.lr
    losses: list[float] = []
    for epoch in range(plan.epochs):
        ranks = [
            tasks.batches(len(data.train_y), plan.batch, rank, plan.workers, plan.seed, epoch)
            for rank in range(plan.workers)
        ]
        for chosen in zip(*ranks, strict=True):
            world = worlds[epoch >= plan.cold]
            now = plan.lr * (1 - (1 - END) * len(losses) / steps)
            world.rescale(lr / now)
            lr = now
            pairs = [gradient(model, params, data.train_x[some], data.train_y[some]) for some in chosen]
            momentum.mul_(MOMENTUM).add_(world.step(torch.stack([grad for grad, _ in pairs])))
            losses.append(sum(loss for _, loss in pairs) / plan.workers)
            move(params, momentum, -lr)
            if not (momentum.isfinite().all() and max(float(p.detach().abs().max()) for p in params) < HUGE):
                return {"step": steps, "steps": steps, "accuracy": None, "loss": None, "bits": bits(worlds)}
    return {
        "step": steps,
        "steps": steps,
        "accuracy": accuracy(model, data),
        "loss": sum(losses[-per_epoch:]) / per_epoch,
        "bits": bits(worlds),
    }


def bits(worlds: Sequence[World]) -> float:
    """Bits that a rank sent per element and step."""
    return sum(world.bits * world.steps for world in worlds) / sum(world.steps for world in worlds)


def gradient(model: nn.Module, params: list[Tensor], images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """The flat gradient of a batch, and its loss."""
    loss = nn.functional.cross_entropy(model(images), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, params)]), float(loss.detach())


@torch.no_grad()
def move(params: list[Tensor], step: Tensor, times: float) -> None:
    """Add `times` the flat step to the parameters, in place."""
    for p, part in zip(params, step.split([p.numel() for p in params]), strict=True):
        p.add_(part.view_as(p), alpha=times)


@torch.no_grad()
def accuracy(model: nn.Module, data: tasks.Data) -> float:
    """The share of test images that are classified correctly."""
    return float((model(data.test_x).argmax(1) == data.test_y).float().mean())


@lru_cache(maxsize=1)
def digits() -> tasks.Data:
    """The images."""
    return tasks.get("digits").load(None)
