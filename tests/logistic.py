"""A sparse logistic regression with an L1 regulariser, cut over workers, and its optimum."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from thinwire.server.prox import soft

L1 = 0.02


class Logistic(NamedTuple):
    """The mean over workers of the mean over rows of log(1 + exp(-y a'x))."""

    rows: Tensor  # (workers, rows, d), labels multiplied in
    eta: float  # 1 / L

    def loss(self, x: Tensor, worker: int) -> Tensor:
        """Of one worker."""
        return softplus(-(self.rows[worker].to(x.dtype) @ x)).mean()

    def diagonal(self, x: Tensor, worker: int) -> Tensor:
        """Of the Hessian of one worker's loss."""
        a = self.rows[worker].to(x.dtype)
        s = torch.sigmoid(a @ x)
        return (a.square() * (s * (1 - s))[:, None]).mean(0)

    def objective(self, x: Tensor) -> float:
        """What is minimised."""
        smooth = torch.stack([self.loss(x.double(), worker) for worker in range(len(self.rows))]).mean()
        return float(smooth + L1 * x.double().abs().sum())

    def gradient(self, x: Tensor) -> Tensor:
        """Of the smooth part."""
        a = self.rows.flatten(0, 1)
        return -(a * torch.sigmoid(-(a @ x))[:, None]).mean(0)


@lru_cache
def logistic(workers: int, d: int = 30, rows: int = 40) -> Logistic:
    """A fifth of the entries are not zero, and four features matter."""
    g = torch.Generator().manual_seed(5)
    a = torch.randn(workers, rows, d, generator=g, dtype=torch.float64)
    a *= torch.rand(workers, rows, d, generator=g) < 0.2
    truth = torch.zeros(d, dtype=torch.float64)
    truth[:4] = torch.tensor([3.0, -2.0, 2.0, -3.0], dtype=torch.float64)
    truth = truth[torch.randperm(d, generator=g)]
    noise = 0.3 * torch.randn(workers, rows, generator=g, dtype=torch.float64)
    a *= torch.sign(a @ truth + noise)[..., None]
    flat = a.flatten(0, 1)
    return Logistic(a, 4 / float(torch.linalg.eigvalsh(flat.mT @ flat / len(flat)).max()))


@lru_cache
def optimum(problem_workers: int, d: int = 30, rows: int = 40) -> Tensor:
    """By proximal gradient descent."""
    problem = logistic(problem_workers, d, rows)
    x = torch.zeros(d, dtype=torch.float64)
    for _ in range(1500):
        x = soft(x - problem.eta * problem.gradient(x), problem.eta * L1)
    return x
