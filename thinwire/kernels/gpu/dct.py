"""The DCT's matrix products in Triton: first X R by rows, then L (X R) by matrices.

Every sum runs in the order of its index, and no product is fused with an addition, as `kernels.dct` defines it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

TILE = 2048  # sums of a program


@triton.jit
def _by_right(x, right, out, rows, N: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    there = row < rows
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for j in range(N):
        a = tl.load(x + row * N + j, mask=there, other=0.0)
        b = tl.load(right + j * N + column, mask=column < N, other=0.0)
        total += a[:, None] * b[None, :]
    tl.store(out + row[:, None] * N + column[None, :], total, mask=there[:, None] & (column < N)[None, :])


@triton.jit
def _by_left(
    left,
    x,
    out,
    count,
    M: tl.constexpr,
    N: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    MATRICES: tl.constexpr,
):
    matrix = tl.program_id(0).to(tl.int64) * MATRICES + tl.arange(0, MATRICES)
    row = tl.arange(0, HEIGHT)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = (matrix < count)[:, None] & (column < N)[None, :]
    start = matrix[:, None] * (M * N) + column[None, :]
    total = tl.zeros((MATRICES, HEIGHT, WIDTH), tl.float32)
    for i in range(M):
        a = tl.load(left + row * M + i, mask=row < M, other=0.0)
        b = tl.load(x + start + i * N, mask=there, other=0.0)
        total += a[None, :, None] * b[:, None, :]
    place = start[:, None, :] + (row * N)[None, :, None]
    tl.store(out + place, total, mask=there[:, None, :] & (row < M)[None, :, None])


def sandwich(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """L X R of every matrix of `x`, which is overwritten if it is contiguous."""
    count, m, n = x.shape
    x = x.contiguous()
    if not x.numel():
        return x
    half = torch.empty_like(x)
    width, height = triton.next_power_of_2(n), triton.next_power_of_2(m)
    rows = max(1, TILE // width)
    _by_right[(triton.cdiv(count * m, rows),)](
        x, right, half, count * m, N=n, WIDTH=width, ROWS=rows, num_warps=4, enable_fp_fusion=False
    )
    width = min(width, max(16, TILE // height))
    matrices = max(1, TILE // (height * width))
    _by_left[(triton.cdiv(count, matrices), triton.cdiv(n, width))](
        left,
        half,
        x,
        count,
        M=m,
        N=n,
        HEIGHT=height,
        WIDTH=width,
        MATRICES=matrices,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return x
