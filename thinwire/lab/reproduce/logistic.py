"""Softmax regression on the digits with a ridge, shared by workers, with its exact optimum: strongly convex, smooth.

    f_i(w) = mean over worker i's images of -log softmax(W x)_y + (ridge / 2) |w|^2,    f = (1/n) sum_i f_i

Images are dealt in equal parts, by label or at random. By label the f_i differ most; either way their gradients do
not vanish at the optimum of f. Pixels are in [0, 1] and a constant is added, so that there are 650 weights. All of it
is in float64.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from thinwire.lab import tasks

CLASSES = 10


@final
class Logistic:
    """`n` workers; `by_label` sorts the images before they are dealt; otherwise `seed` shuffles them."""

    def __init__(self, n: int, ridge: float, *, by_label: bool = True, seed: int = 0) -> None:
        data = tasks.get("digits").load(None)
        kept = len(data.train_y) // n * n
        labels = data.train_y[:kept]
        shuffled = torch.randperm(kept, generator=torch.Generator().manual_seed(seed))
        order = labels.argsort(stable=True) if by_label else shuffled
        flat = data.train_x[order].flatten(1).double()
        x = torch.cat([flat, torch.ones(kept, 1, dtype=torch.float64)], 1)
        self.n, self.ridge, self.d = n, ridge, CLASSES * x.shape[1]
        self.x = x.view(n, -1, x.shape[1])  # (workers, images, pixels)
        self.y = torch.nn.functional.one_hot(labels[order], CLASSES).double().view(n, -1, CLASSES)
        self.test_x, self.test_y = data.test_x.flatten(1).double(), data.test_y
        self.smooth = 0.5 * float(torch.linalg.eigvalsh(x.T @ x / kept).max()) + ridge
        self.optimum = self._newton()
        self.least = self.loss(self.optimum)

    def loss(self, w: Tensor) -> float:
        """The loss over all images."""
        logits = self.x @ w.view(CLASSES, -1).T
        return float((logits.logsumexp(2) - (logits * self.y).sum(2)).mean() + self.ridge / 2 * w.square().sum())

    def gradients(self, w: Tensor) -> Tensor:
        """Every worker's gradient, (n, d)."""
        wrong = (self.x @ w.view(CLASSES, -1).T).softmax(2) - self.y  # (workers, images, classes)
        return (wrong.mT @ self.x / self.x.shape[1]).flatten(1) + self.ridge * w

    def gap(self, w: Tensor) -> float:
        """f(w) - f*."""
        return self.loss(w) - self.least

    def accuracy(self, w: Tensor) -> float:
        """The share of test images that are classified correctly."""
        weight = w.view(CLASSES, -1)
        return float(((self.test_x @ weight[:, :-1].T + weight[:, -1]).argmax(1) == self.test_y).double().mean())

    def _newton(self) -> Tensor:
        w = torch.zeros(self.d, dtype=torch.float64)
        x = self.x.flatten(0, 1)
        squares = (x[:, :, None] * x[:, None, :]).flatten(1)  # (images, pixels^2)
        for _ in range(20):
            p = (x @ w.view(CLASSES, -1).T).softmax(1)
            curve = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]).flatten(1)  # (images, classes^2)
            h = (curve.T @ squares / len(x)).view(CLASSES, CLASSES, x.shape[1], x.shape[1]).permute(0, 2, 1, 3)
            full = h.reshape(self.d, self.d) + self.ridge * torch.eye(self.d, dtype=torch.float64)
            move = torch.linalg.solve(full, self.gradients(w).mean(0))
            w = w - move
            if move.square().sum() < 1e-28 * w.square().sum():
                break
        return w
