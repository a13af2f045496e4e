"""Selection, by the C++ module `_topk`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.kernels.cpu import _topk
from thinwire.kernels.cpu.means import means
from thinwire.kernels.dispatch import select

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.key import Key


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the `k` largest magnitudes."""
    indices, values = torch.empty(k, dtype=torch.int64), torch.empty(k)
    _topk.top(x.data_ptr(), x.numel(), k, indices.data_ptr(), values.data_ptr(), *means(x))
    return indices, values


def top_blocks(x: Tensor, block: int, k: int, count: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of every block, `count` in all."""
    places, values = torch.empty(count, dtype=torch.int32), torch.empty(count)
    _topk.top_blocks(x.data_ptr(), x.numel(), block, k, places.data_ptr(), values.data_ptr(), *means(x))
    return places, values


def over(x: Tensor, floor: int) -> tuple[Tensor, Tensor]:
    """Indices and values of every magnitude of at least `floor`."""
    room = x.numel() // 16 + 64
    while True:
        indices, values = torch.empty(room, dtype=torch.int64), torch.empty(room)
        to = (indices.data_ptr(), values.data_ptr(), *means(x))
        count = _topk.over(x.data_ptr(), x.numel(), floor, room, *to)
        if count <= room:
            return indices[:count], values[:count]
        room = count


def subset(like: Tensor, key: Key, n: int, k: int) -> Tensor:
    """`k` of 0 .. n-1."""
    noise, indices = select(like).noise(key, k).to(torch.uint32), torch.empty(k, dtype=torch.int64)
    _topk.subset(noise.data_ptr(), n, k, indices.data_ptr())
    return indices


def merge(ai: Tensor, av: Tensor, bi: Tensor, bv: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of two sparse vectors."""
    size = ai.numel() + bi.numel()
    indices, values = torch.empty(size, dtype=torch.int64), torch.empty(size)
    ai, av, bi, bv = (t.contiguous() for t in (ai, av, bi, bv))
    left, right = (ai.data_ptr(), av.data_ptr(), ai.numel()), (bi.data_ptr(), bv.data_ptr(), bi.numel())
    count = _topk.merge(*left, *right, indices.data_ptr(), values.data_ptr())
    return indices[:count], values[:count]
