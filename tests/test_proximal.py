"""ProximalSGD, alone and with DIANA: the minimum of a loss plus an L1 and an L2 term, and its zeros."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from nets import Point
from torch import Tensor, nn

import thinwire as tw
from thinwire.optim import ProximalSGD

N, D, ROWS, L1, L2 = 4, 20, 30, 0.4, 0.1
GENERATOR = torch.Generator().manual_seed(0)
A = torch.randn(N, ROWS, D, generator=GENERATOR)
TRUTH = torch.zeros(D)
TRUTH[:4] = torch.tensor([2.0, -1.5, 1.0, 3.0])
B = A @ TRUTH + 0.3 * torch.randn(N, ROWS, generator=GENERATOR) + 0.5 * torch.arange(N)[:, None]


def optimum() -> Tensor:
    """By the conditions of the minimum: soft thresholding in float64 until nothing changes."""
    x, a, b = torch.zeros(D, dtype=torch.float64), A.double(), B.double()
    hessian, pull = (a.mT @ a).mean(0) / ROWS, (a.mT @ b[..., None]).mean(0)[:, 0] / ROWS
    for _ in range(3000):
        z = x - 0.3 * (hessian @ x - pull)
        x = z.sign() * (z.abs() - 0.3 * L1).clamp(min=0) / (1 + 0.3 * L2)
    return x


def problem(momentum: float = 0.0) -> tw.sim.Problem:
    def model() -> nn.Module:
        linear = nn.Linear(D, 1, bias=False)
        nn.init.zeros_(linear.weight)
        return linear

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        error: Tensor = model(A[rank])[:, 0] - B[rank]
        return error.square().sum() / (2 * ROWS)

    return tw.sim.Problem(model, loss, lambda p: ProximalSGD(p, lr=0.1, momentum=momentum, l1=L1, l2=L2))


def weights(method: tw.Method, steps: int, momentum: float = 0.0) -> list[Tensor]:
    done = tw.simulate(method, problem(momentum), workers=N, steps=steps, min_size=0)
    return [next(model.parameters()).detach()[0].double() for model in done.models]


@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 150), (0.5, 100)])
def test_diana_reaches_the_minimum_and_its_zeros(momentum: float, steps: int) -> None:
    best = optimum()
    assert 2 <= int((best != 0).sum()) <= 6
    first, *others = weights(tw.methods.diana(block=D), steps, momentum)
    assert all(torch.equal(x, first) for x in others)
    assert torch.equal(first != 0, best != 0)
    assert (first - best).norm() < 1e-5 * best.norm()


@pytest.mark.parametrize(
    "method",
    [
        "consensus-admm:rho=1,l1=0.8,every=1",
        "async-admm:rho=1,least=2,l1=0.8,every=1",
        "ad-admm:rho=1,least=2,l1=0.8,every=1",
        "spy:p=0.5,l1=0.8",
        "dbpg:l1=0.8",
    ],
)
def test_l1_weighs_against_the_mean_of_the_losses(method: str) -> None:
    """f_r = (x - r)^2 / 2 on four workers: the mean is least at 1.5, and with 0.8 |x| at 0.7, by every method."""

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return (next(model.parameters()) - rank).square().sum() / 2

    problem = tw.sim.Problem(partial(Point, 3), loss, partial(torch.optim.SGD, lr=0.2))
    done = tw.simulate(tw.method(method), problem, workers=4, steps=120, min_size=0)
    torch.testing.assert_close(next(done.models[0].parameters()), torch.full((3,), 0.7), rtol=0, atol=1e-3)


def test_a_refining_grid_reaches_it_too() -> None:
    """The inexact proximal gradient method: 6 bits per element, and no scale."""
    best = optimum()
    (x, *_) = weights(tw.methods.refining(bits=6, width=32.0, kappa=0.94), 120)
    assert torch.equal(x != 0, best != 0)
    assert (x - best).norm() < 1e-3 * best.norm()


def test_without_shifts_quantised_gradients_miss_it() -> None:
    best = optimum()
    (x, *_) = weights(tw.methods.qsgd(levels=1, bits=None, block=D, exchange="all-gather"), 150)
    assert (x - best).norm() > 1e-2 * best.norm()


def test_without_a_regulariser_it_is_sgd() -> None:
    ours, theirs = (nn.Parameter(torch.arange(4.0)) for _ in range(2))
    a, b = ProximalSGD([ours], lr=0.1, momentum=0.9), torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    for step in range(4):
        for p in (ours, theirs):
            p.grad = torch.full((4,), float(step + 1))
        a.step()
        b.step()
    assert torch.equal(ours, theirs)


def test_the_proximal_map_solves_its_problem() -> None:
    """prox(z) minimises lr R(x) + |x - z|^2 / 2, here against a fine grid."""
    z = torch.tensor([-1.3, -0.02, 0.0, 0.4])
    x = nn.Parameter(z.clone())
    x.grad = torch.zeros(4)
    ProximalSGD([x], lr=0.5, l1=0.3, l2=0.8).step()
    grid = torch.linspace(-2, 2, 40001)[:, None]
    cost = 0.5 * (0.3 * grid.abs() + 0.4 * grid.square()) + (grid - z).square() / 2
    assert torch.allclose(x.data, grid[cost.argmin(0), 0], atol=1e-4)


def test_wrong_numbers_are_refused() -> None:
    p = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ValueError, match="not negative"):
        ProximalSGD(p, l1=-1)
    with pytest.raises(ValueError, match="0 <= momentum < 1"):
        ProximalSGD(p, momentum=1)
    p[0].grad = torch.zeros(1).to_sparse()
    with pytest.raises(ValueError, match="dense gradients"):
        ProximalSGD(p).step()
