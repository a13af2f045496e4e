"""Torus: a grid whose rows and columns close, one fifth to each of four neighbours, as in the code of CHOCO-SGD.

    rank = row * columns + column,    W[i, i] = 1/5, and 1/5 up, down, left and right
    eigenvalues 1/5 + 2/5 cos(2 pi k / rows) + 2/5 cos(2 pi l / columns)

Weights of edges that coincide are added: with two rows, up and down are the same rank and have 2/5; with one row they
are the rank itself. A prime number of ranks leaves one row: a ring with 3/5 on the diagonal, where `Ring()` mixes
faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.mixing import circulant

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Torus(Topology):
    """`rows` rows, and as many columns as it takes; None takes the divisor nearest to a square.

    >>> Torus().shape(32), Torus(rows=2).shape(32)
    ((4, 8), (2, 16))
    """

    name: ClassVar[str] = "torus"
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"Torus(rows={self.rows}) has no rows; write Torus(rows=4), or Torus()")

    def shape(self, n: int) -> tuple[int, int]:
        """Rows and columns of n ranks."""
        fit = [rows for rows in range(1, n + 1) if n % rows == 0]
        nearest = max(rows for rows in fit if rows <= math.isqrt(n))
        if self.rows is not None and self.rows not in fit:
            raise ValueError(
                f"{n} ranks do not make {self.rows} equal rows; write Torus(rows={nearest}), "
                f"or rows={' or '.join(map(str, fit))}"
            )
        rows = self.rows or nearest
        return rows, n // rows

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """One fifth at home and from each of four neighbours."""
        rows, columns = self.shape(n)
        down, right = circulant(rows, {1: 0.2, -1: 0.2}), circulant(columns, {1: 0.2, -1: 0.2})
        eye = 0.2 * torch.eye(n, dtype=torch.float64)
        return eye + torch.kron(down, torch.eye(columns).double()) + torch.kron(torch.eye(rows).double(), right)


TOPOLOGIES.add(Torus.name, Torus)
