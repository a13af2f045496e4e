"""The orthonormal DCT-II of many small matrices, and its inverse, with the same bits on every machine.

    Y = D_m X D_n^T,    X = D_m^T Y D_n,    D_n[k, j] = sqrt((1 + [k > 0]) / n) cos(pi (2j + 1) k / 2n)

Both are L X R with float32 tables; every sum starts at 0 and runs in the order of its index, without fused
multiply-adds. CPU tensors take a C++ pass; the plain torch below is the definition.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from thinwire.kernels.dispatch import select


@cache
def _cpp() -> ModuleType:
    from thinwire.kernels.cpu import _dct  # noqa: PLC0415  (the extension loads on first use)

    return _dct


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


def dct(x: Tensor) -> Tensor:
    """Y of every matrix X in `x`, (count, m, n) float32, which may be overwritten."""
    _, m, n = x.shape
    return _sandwich(basis(m), x, basis(n).T.contiguous())


def idct(y: Tensor) -> Tensor:
    """X of every matrix Y in `y`, (count, m, n) float32, which may be overwritten."""
    _, m, n = y.shape
    return _sandwich(basis(m).T.contiguous(), y, basis(n))


def _sandwich(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    count, m, n = x.shape
    tier = select(x)
    if tier.name != "reference":
        x = x.contiguous()
        threads = torch.get_num_threads()
        _cpp().sandwich(x.data_ptr(), count, m, n, left.data_ptr(), right.data_ptr(), threads, tier.vectors)
        return x
    left, right = left.to(x.device), right.to(x.device)
    half = torch.zeros_like(x)
    for j in range(n):
        half = half + x[:, :, j : j + 1] * right[j]
    out = torch.zeros_like(x)
    for i in range(m):
        out = out + left[:, i : i + 1] * half[:, i : i + 1, :]
    return out
