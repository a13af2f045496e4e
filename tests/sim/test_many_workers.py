"""Real numbers on 256 workers: a mean of all, and means of neighbours."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.sim import Problem

N = 256


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(6, 2)


def pull(model: nn.Module, rank: int, step: int) -> Tensor:
    """The gradient of every weight is the rank."""
    return rank * torch.cat([p.flatten() for p in model.parameters()]).sum()


def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def weights(done: tw.sim.Simulation) -> Tensor:
    """How far each worker's weights have moved, which is equally far for all of them."""
    rows = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in done.models])
    moved = rows - torch.cat([p.detach().flatten() for p in net().parameters()])
    torch.testing.assert_close(moved, moved[:, :1].expand_as(moved), rtol=1e-4, atol=1e-5)
    return moved[:, 0]


def test_all_step_by_the_mean_of_256_gradients() -> None:
    done = tw.simulate(tw.methods.sgd(), Problem(net, pull, optimizer=descent, seconds=0.1), N, steps=2, min_size=0)
    assert len(done.moments) == 2 * N
    torch.testing.assert_close(weights(done), torch.full((N,), -0.01 * 2 * (N - 1) / 2), rtol=1e-4, atol=0)
    ring = 2 * (N - 1) * 1e-3
    assert done.seconds == pytest.approx(2 * (0.1 + 2 * ring), rel=0.01), "an agreement and a sum in each step"


def test_neighbours_of_256_mix_their_models() -> None:
    """After two steps every rank has moved by its own gradient, and by the means of its neighbours' on a ring."""
    problem = Problem(net, pull, optimizer=descent, seconds=0.1)
    done = tw.simulate(tw.methods.d_psgd(), problem, N, steps=2, min_size=0)
    own = -0.01 * torch.arange(N, dtype=torch.float32)
    mixed = (own + own.roll(1) + own.roll(-1)) / 3
    torch.testing.assert_close(weights(done), own + mixed, rtol=1e-4, atol=1e-5)
    assert done.seconds < 0.25
