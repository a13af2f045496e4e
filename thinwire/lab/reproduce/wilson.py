"""Least squares with more unknowns than rows, on which the direction of descent decides what is learned.

Row i has a label y_i = +-1 in its first place, ones in the next two, and five places of its own: one of them is 1,
the other four are 1 where y_i = -1, and are left out otherwise. Only the first place helps with rows that were not
seen. Gradients are sums of rows, so that descent from zero stays in their span, whose solution of least length looks
at the first place.

Reference: Wilson, Roelofs, Stern, Srebro, Recht, "The marginal value of adaptive gradient methods in machine
learning", NeurIPS 2017, arXiv 1705.08292, section 3.3.

Departs from the paper: rows to test on have their own places beyond those of the training rows, all of weight zero.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Generator, Tensor

ROWS = 50
POSITIVE = 0.6  # share of rows with y = 1


@final
class Wilson:
    """ROWS rows to train on, 10 ROWS to test on."""

    def __init__(self, seed: int, rows: int = ROWS) -> None:
        g = torch.Generator().manual_seed(1000 + seed)
        self.y = torch.where(torch.rand(rows, generator=g) < POSITIVE, 1.0, -1.0)
        self.a = torch.zeros(rows, 3 + 5 * rows)
        self.a[:, 0], self.a[:, 1:3] = self.y, 1.0
        for i, label in enumerate(self.y):
            self.a[i, 3 + 5 * i : 3 + 5 * i + (1 if label > 0 else 5)] = 1.0
        self.a = self.a[:, self.a.any(0)]  # places that no row uses have no gradient, and sign(0) = 1 would move them
        self.d = self.a.shape[1]
        self.other = torch.where(torch.rand(10 * rows, generator=g) < POSITIVE, 1.0, -1.0)
        self.basis = torch.linalg.qr(self.a.T.double()).Q

    def loss(self, x: Tensor) -> float:
        """Half the mean squared error; the least is 0."""
        return float((self.a @ x - self.y).square().mean() / 2)

    def gradient(self, x: Tensor, _: Generator) -> Tensor:
        """The gradient over all rows."""
        return self.a.T @ (self.a @ x - self.y) / len(self.y)

    def accuracy(self, x: Tensor) -> float:
        """The share of new rows whose sign is right; their own places meet weights of zero."""
        told = self.other * x[0] + x[1] + x[2]
        return float((torch.where(told >= 0, 1.0, -1.0) == self.other).float().mean())

    def outside(self, x: Tensor) -> float:
        """The part of the length of x that is outside the span of the rows."""
        wide = x.double()
        return float((wide - self.basis @ (self.basis.T @ wide)).norm() / wide.norm())
