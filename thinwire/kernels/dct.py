"""The orthonormal DCT-II of many small matrices, and its inverse, with the same bits on every machine.

    Y = D_m X D_n^T,    X = D_m^T Y D_n,    D_n[k, j] = sqrt((1 + [k > 0]) / n) cos(pi (2j + 1) k / 2n)

Both are L X R with float32 tables; every sum starts at 0 and runs in the order of its index, without fused
multiply-adds. The plain torch below is the definition of the bits.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from thinwire.kernels.table import find


@cache
def basis(n: int) -> Tensor:
    """D_n: row k is the k-th cosine, float32.

    >>> basis(2)
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    turns = [[(2 * j + 1) * k % (4 * n) / (4 * n) for j in range(n)] for k in range(n)]
    rows = [[math.sqrt(min(k + 1, 2) / n) * math.cos(2 * math.pi * t) for t in row] for k, row in enumerate(turns)]
    return torch.tensor(rows, dtype=torch.float64).float()


@cache
def _table(n: int, device: torch.device, *, turned: bool) -> Tensor:
    """D_n or its transpose, where it is used."""
    return (basis(n).T.contiguous() if turned else basis(n)).to(device)


def dct(x: Tensor) -> Tensor:
    """Y of every matrix X in `x`, (count, m, n) float32, which may be overwritten."""
    _, m, n = x.shape
    left, right = _table(m, x.device, turned=False), _table(n, x.device, turned=True)
    return find("dct.sandwich", x, _sandwich)(left, x, right)


def idct(y: Tensor) -> Tensor:
    """X of every matrix Y in `y`, (count, m, n) float32, which may be overwritten."""
    _, m, n = y.shape
    left, right = _table(m, y.device, turned=True), _table(n, y.device, turned=False)
    return find("dct.sandwich", y, _sandwich)(left, y, right)


def _sandwich(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    _, m, n = x.shape
    half = torch.zeros_like(x)
    for j in range(n):
        half = half + x[:, :, j : j + 1] * right[j]
    out = torch.zeros_like(x)
    for i in range(m):
        out = out + left[:, i : i + 1] * half[:, i : i + 1, :]
    return out
