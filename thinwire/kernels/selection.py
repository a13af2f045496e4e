"""Selection: the largest magnitudes of a vector, those over a threshold, random subsets, sums of sparse vectors.

A magnitude is the 31 low bits of a float32, compared as an integer: NaN is above infinity, infinity above every
number. Of equal magnitudes the lower index comes first. Every function has a definition in plain torch, which serves
the `reference` tier and GPU tensors, and a C++ pass with the same bits.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from thinwire.kernels.dispatch import get, select

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.key import Key

LARGEST = (1 << 31) - 1
"""Vectors have at most this many elements."""


@cache
def _cpp() -> ModuleType:
    from thinwire.kernels.cpu import _topk  # noqa: PLC0415  (the extension loads on first use)

    return _topk


def magnitudes(x: Tensor) -> Tensor:
    """The magnitudes as they are compared, int32."""
    return x.view(torch.int32) & LARGEST


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices (int64, ascending) and values of the `k` largest magnitudes of `x`.

    >>> top(torch.tensor([1.0, -5.0, 2.0, -2.0]), 2)
    (tensor([1, 2]), tensor([-5.,  2.]))
    """
    n = _length(x)
    k = min(k, n)
    if _plain(x):
        order = magnitudes(x).sort(descending=True, stable=True).indices
        indices = order[:k].sort().values
        return indices, x[indices]
    indices, values = torch.empty(k, dtype=torch.int64), torch.empty(k)
    _cpp().top(x.data_ptr(), n, k, indices.data_ptr(), values.data_ptr(), *_means(x))
    return indices, values


def top_blocks(x: Tensor, block: int, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of every `block` elements: places inside the block (int32), and values.

    Blocks follow each other with k entries each, places ascending; a last block shorter than k keeps all its
    elements.

    >>> top_blocks(torch.tensor([1.0, -5.0, 2.0, 7.0, 0.5]), block=3, k=1)
    (tensor([1, 0], dtype=torch.int32), tensor([-5.,  7.]))
    """
    n = _length(x)
    count = block_entries(n, block, k)
    if _plain(x):
        parts = [top(part, k) for part in x.split(block)]  # splitting an empty vector gives one empty part
        return torch.cat([part[0] for part in parts]).to(torch.int32), torch.cat([part[1] for part in parts])
    places, values = torch.empty(count, dtype=torch.int32), torch.empty(count)
    arguments = (places.data_ptr(), values.data_ptr(), *_means(x))
    _cpp().top_blocks(x.data_ptr(), n, block, k, *arguments)
    return places, values


def block_entries(n: int, block: int, k: int) -> int:
    """How many elements `top_blocks` keeps.

    >>> block_entries(10, 4, 3)
    8
    """
    return n // block * min(k, block) + min(k, n % block)


def over(x: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Indices (int64, ascending) and values of every element of at least that magnitude, including NaN.

    >>> over(torch.tensor([1.0, -5.0, 2.0]), 2.0)
    (tensor([1, 2]), tensor([-5.,  2.]))
    """
    n = _length(x)
    floor = int(magnitudes(torch.tensor([threshold], dtype=torch.float32)))
    if _plain(x):
        indices = (magnitudes(x) >= floor).nonzero()[:, 0]
        return indices, x[indices]
    room = n // 16 + 64
    while True:
        indices, values = torch.empty(room, dtype=torch.int64), torch.empty(room)
        arguments = (indices.data_ptr(), values.data_ptr(), *_means(x))
        count = _cpp().over(x.data_ptr(), n, floor, room, *arguments)
        if count <= room:
            return indices[:count], values[:count]
        room = count


def subset(key: Key, n: int, k: int, device: torch.device | None = None) -> Tensor:
    """`k` of 0 .. n-1, int64, ascending, every subset as likely as any other: Floyd's algorithm on the key's noise.

    >>> from thinwire.core.types import Key
    >>> subset(Key(seed=3), n=100, k=4)
    tensor([22, 34, 37, 50])
    """
    tier = select(torch.empty(0))
    words = tier.noise(key, k)
    if tier.name == "reference":
        taken: set[int] = set()
        for j, word in zip(range(n - k, n), words.tolist(), strict=True):
            t = word * (j + 1) >> 32
            taken.add(j if t in taken else t)
        return torch.tensor(sorted(taken), dtype=torch.int64, device=device)
    noise, indices = words.to(torch.uint32), torch.empty(k, dtype=torch.int64)
    _cpp().subset(noise.data_ptr(), n, k, indices.data_ptr())
    return indices.to(device) if device is not None else indices


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of two sparse vectors, each (indices ascending, values).

    >>> one, two = (torch.tensor([1, 4]), torch.tensor([1.0, 2.0])), (torch.tensor([4]), torch.tensor([0.5]))
    >>> merge(one, two)
    (tensor([1, 4]), tensor([1.0000, 2.5000]))
    """
    (ai, av), (bi, bv) = a, b
    if _plain(av):
        indices, place = torch.cat([ai, bi]).unique(return_inverse=True)
        total = torch.zeros(indices.numel(), device=av.device)
        total[place[: ai.numel()]] = av
        total[place[ai.numel() :]] += bv
        return indices, total
    size = ai.numel() + bi.numel()
    indices, values = torch.empty(size, dtype=torch.int64), torch.empty(size)
    ai, av, bi, bv = (t.contiguous() for t in (ai, av, bi, bv))
    left, right = (ai.data_ptr(), av.data_ptr(), ai.numel()), (bi.data_ptr(), bv.data_ptr(), bi.numel())
    count = _cpp().merge(*left, *right, indices.data_ptr(), values.data_ptr())
    return indices[:count], values[:count]


def sampled_threshold(x: Tensor, k: int, key: Key, share: float = 0.01) -> float:
    """The magnitude that `k` elements of `x` reach, estimated from a strided sample of a `share` of them.

    The sample is element i s + o for every i; the stride s is round(1 / share), and the offset o comes from the key.
    """
    n = _length(x)
    stride = max(1, min(round(1 / share), n // max(1, k)))
    start = int(get("cpu").noise(key, 1)) % stride
    sample = x[start::stride].contiguous()
    rank = max(1, min(sample.numel(), round(k * sample.numel() / n)))
    _, values = top(sample, rank)
    return float(magnitudes(values).min().view(torch.float32))


def finite(x: Tensor) -> bool:
    """Whether all are finite: then so is the sum, unless it overflows, and only then are the elements looked at."""
    return math.isfinite(float(x.sum())) or bool(x.isfinite().all())


def _plain(x: Tensor) -> bool:
    return select(x).name == "reference"


def _means(x: Tensor) -> tuple[int, int]:
    """The threads and the instructions that C++ may use."""
    return torch.get_num_threads(), select(x).vectors


def _length(x: Tensor) -> int:
    if x.dtype != torch.float32 or x.dim() != 1 or not x.is_contiguous() or x.numel() > LARGEST:
        raise ValueError(
            f"selection reads contiguous float32 vectors of less than 2^31 elements; got {x.dtype} of shape "
            f"{tuple(x.shape)}: write x.float().contiguous().view(-1)"
        )
    return x.numel()
