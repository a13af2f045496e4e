"""A small net, its data and its training loop, for tests in real processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 24


def net(seed: int = 0) -> nn.Sequential:
    """Three layers, 1,108 parameters, the same on every rank for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))


def batch(step: int, rank: int | None = None, size: int = 8) -> tuple[Tensor, Tensor]:
    """What a rank sees in a step."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 16, generator=generator)
    return x, x[:, :4].sin()


def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    out: Tensor = (model(data[0]) - data[1]).square().mean()
    return out


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    data: Callable[[int], tuple[Tensor, Tensor]] = batch,
) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss(model, data(step)).backward()
        optimizer.step()


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def equal_everywhere(x: Tensor) -> bool:
    """Whether all ranks hold the same bits."""
    copies = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, x.contiguous())
    return all(torch.equal(copy.view(torch.uint8), x.view(torch.uint8)) for copy in copies)


def said(call: Callable[[], object]) -> str:
    """The error that a call raises, as text; empty when it raises none."""
    with contextlib.suppress(AssertionError):
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""
