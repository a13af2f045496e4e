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

DTYPES = (torch.float32, torch.int64, torch.float32)  # of a vector, places and values
FINE, OUTSIDE = 0, 2  # what add_at and keep_at found; 1 is a value that is not finite


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the `k` largest magnitudes."""
    return _top(x, 0, 1.0, k)


def top_sum(x: Tensor, e: Tensor, alpha: float, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the `k` largest magnitudes of x + alpha e, which is not stored."""
    assert e.is_contiguous()
    assert e.dtype == torch.float32
    return _top(x, e.data_ptr(), alpha, k)


def _top(x: Tensor, e: int, alpha: float, k: int) -> tuple[Tensor, Tensor]:
    indices, values = torch.empty(k, dtype=torch.int64), torch.empty(k)
    _topk.top(x.data_ptr(), e, alpha, x.numel(), k, indices.data_ptr(), values.data_ptr(), *means(x))
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


def add_at(out: Tensor, indices: Tensor, values: Tensor, weight: float) -> None:
    """`out[indices] += weight * values`."""
    indices, values = indices.contiguous(), values.contiguous()
    assert out.is_contiguous()
    assert (out.dtype, indices.dtype, values.dtype) == DTYPES
    to = (indices.data_ptr(), values.data_ptr(), indices.numel())
    if _fine(_topk.add_at(out.data_ptr(), out.numel(), *to, weight), out.numel()):
        return
    out.fill_(torch.nan)


def keep_at(e: Tensor, x: Tensor, indices: Tensor, sent: Tensor, beta: float) -> None:
    """e = beta e + x, less `sent` at these places."""
    indices, sent = indices.contiguous(), sent.contiguous()
    assert e.is_contiguous()
    assert x.is_contiguous()
    assert (x.dtype, *(t.dtype for t in (e, indices, sent))) == (torch.float32, *DTYPES)
    at = (indices.data_ptr(), sent.data_ptr(), indices.numel())
    _fine(_topk.keep_at(e.data_ptr(), x.data_ptr(), e.numel(), *at, beta, torch.get_num_threads()), e.numel())


def _fine(found: int, n: int) -> bool:
    """Whether all values were finite; IndexError for places that cannot be, before anything has changed."""
    if found == OUTSIDE:
        raise IndexError(f"places are not ascending numbers below {n}")
    return found == FINE
