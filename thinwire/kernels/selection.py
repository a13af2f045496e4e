"""Selection: the largest magnitudes of a vector, those over a threshold, random subsets, sums of sparse vectors.

A magnitude is the 31 low bits of a float32, compared as an integer: NaN is above infinity, infinity above every
number. Of equal magnitudes the lower index comes first. The plain torch here is the definition of the bits; the
functions ask the table for a faster one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from thinwire.kernels import philox
from thinwire.kernels.table import find

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.key import Key

LARGEST = (1 << 31) - 1
"""Vectors have at most this many elements."""


def magnitudes(x: Tensor) -> Tensor:
    """The magnitudes as they are compared, int32."""
    return x.view(torch.int32) & LARGEST


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices (int64, ascending) and values of the `k` largest magnitudes of `x`.

    >>> top(torch.tensor([1.0, -5.0, 2.0, -2.0]), 2)
    (tensor([1, 2]), tensor([-5.,  2.]))
    """
    return find("selection.top", x, _top)(x, min(k, _length(x)))


def _top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    order = magnitudes(x).sort(descending=True, stable=True).indices
    indices = order[:k].sort().values
    return indices, x[indices]


def top_sum(x: Tensor, e: Tensor, alpha: float, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the `k` largest magnitudes of `x + alpha * e`.

    >>> top_sum(torch.tensor([1.0, -5.0, 2.0]), torch.tensor([6.0, 4.0, 0.0]), 0.5, 1)
    (tensor([0]), tensor([4.]))
    """
    return find("selection.top_sum", x, _top_sum)(x, e, alpha, min(k, _length(x)))


def _top_sum(x: Tensor, e: Tensor, alpha: float, k: int) -> tuple[Tensor, Tensor]:
    return top(x + e * alpha, k)


def top_blocks(x: Tensor, block: int, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of every `block` elements: places inside the block (int32), and values.

    Blocks follow each other with k entries each, places ascending; a last block shorter than k keeps all its
    elements.

    >>> top_blocks(torch.tensor([1.0, -5.0, 2.0, 7.0, 0.5]), block=3, k=1)
    (tensor([1, 0], dtype=torch.int32), tensor([-5.,  7.]))
    """
    return find("selection.top_blocks", x, _top_blocks)(x, block, k, block_entries(_length(x), block, k))


def _top_blocks(x: Tensor, block: int, k: int, count: int) -> tuple[Tensor, Tensor]:
    whole = x.numel() // block * block
    rows, (rest, last) = x[:whole].view(-1, block), _top(x[whole:], k)
    order = magnitudes(rows).sort(descending=True, stable=True).indices
    indices = order[:, :k].sort().values
    values = rows.gather(1, indices)
    assert indices.numel() + rest.numel() == count
    return torch.cat((indices.flatten(), rest)).to(torch.int32), torch.cat((values.flatten(), last))


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
    _length(x)
    floor = int(magnitudes(torch.tensor([threshold], dtype=torch.float32)))
    return find("selection.over", x, _over)(x, floor)


def _over(x: Tensor, floor: int) -> tuple[Tensor, Tensor]:
    indices = (magnitudes(x) >= floor).nonzero()[:, 0]
    return indices, x[indices]


def subset(key: Key, n: int, k: int, device: torch.device | None = None) -> Tensor:
    """`k` of 0 .. n-1, int64, ascending, every subset as likely as any other: Floyd's algorithm on the key's noise.

    >>> from thinwire.core.types import Key
    >>> subset(Key(seed=3), n=100, k=4)
    tensor([22, 34, 37, 50])
    """
    like = torch.empty(0, device=device)
    return find("selection.subset", like, _subset)(like, key, n, k)


def _subset(like: Tensor, key: Key, n: int, k: int) -> Tensor:
    """Step j of Floyd's algorithm draws t <= j, and takes j where t is taken already; all steps at once.

    A draw is taken where an earlier step drew it, or where it is itself the number of an earlier step that took its
    own: chains of steps, which are followed by doubling.
    """
    step = torch.arange(n - k, n, device=like.device)
    drawn = philox.noise(key, k, like.device) * (step + 1) >> 32
    ordered, order = drawn.sort(stable=True)
    own = torch.zeros(k, dtype=torch.bool, device=like.device)
    own[order[1:]] = ordered[1:] == ordered[:-1]
    before = torch.where((drawn >= n - k) & (drawn < step), drawn, step) - (n - k)
    for _ in range(k.bit_length()):
        own, before = own | own[before], before[before]
    return torch.where(own, step, drawn).sort().values


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of two sparse vectors, each (indices ascending, values).

    >>> one, two = (torch.tensor([1, 4]), torch.tensor([1.0, 2.0])), (torch.tensor([4]), torch.tensor([0.5]))
    >>> merge(one, two)
    (tensor([1, 4]), tensor([1.0000, 2.5000]))
    """
    (ai, av), (bi, bv) = a, b
    return find("selection.merge", av, _merge)(ai, av, bi, bv)


def _merge(ai: Tensor, av: Tensor, bi: Tensor, bv: Tensor) -> tuple[Tensor, Tensor]:
    indices, place = torch.cat([ai, bi]).unique(return_inverse=True)
    total = torch.zeros(indices.numel(), device=av.device)
    total[place[: ai.numel()]] = av
    total[place[ai.numel() :]] += bv
    return indices, total


def sampled_threshold(x: Tensor, k: int, key: Key, share: float = 0.01) -> float:
    """The magnitude that `k` elements of `x` reach, estimated from a strided sample of a `share` of them.

    The sample is element i s + o for every i; the stride s is round(1 / share), and the offset o comes from the key.
    """
    n = _length(x)
    stride = max(1, min(round(1 / share), n // max(1, k)))
    start = philox.first(key) % stride
    sample = x[start::stride].contiguous()
    rank = max(1, min(sample.numel(), round(k * sample.numel() / n)))
    _, values = top(sample, rank)
    return float(magnitudes(values).min().view(torch.float32))


def add_at(out: Tensor, indices: Tensor, values: Tensor, weight: float) -> None:
    """`out[indices] += weight * values`, in place, indices all different; NaN everywhere if a value is not finite."""
    find("selection.add_at", out, _add_at)(out, indices, values, weight)


def _add_at(out: Tensor, indices: Tensor, values: Tensor, weight: float) -> None:
    if not bool(values.isfinite().all()):
        out.fill_(torch.nan)
    elif out.is_cpu:
        out.index_add_(0, indices, values * weight)
    else:
        out[indices] = out[indices] + values * weight  # there index_add_ flushes denormals


def keep_at(e: Tensor, x: Tensor, indices: Tensor, sent: Tensor, beta: float) -> None:
    """`e = beta * e + x`, in place, less `sent` at `indices`, which ascend; where that is not finite, `e` stays."""
    find("selection.keep_at", e, _keep_at)(e, x, indices, sent, beta)


def _keep_at(e: Tensor, x: Tensor, indices: Tensor, sent: Tensor, beta: float) -> None:
    if bool(sent.isfinite().all()):
        left = e[indices] * beta + (x[indices] - sent)
        e.mul_(beta).add_(x).index_copy_(0, indices, left)


def finite(x: Tensor) -> bool:
    """Whether all are finite: then so is the sum, unless it overflows, and only then are the elements looked at."""
    return math.isfinite(float(x.sum())) or bool(x.isfinite().all())


def spoilt(x: Tensor, values: Tensor) -> Tensor:
    """`values`, or NaN where an element of `x` is not finite; on a GPU, the host does not wait to know."""
    if x.is_cpu:
        return values if finite(x) else torch.full_like(values, torch.nan)
    return torch.where(x.isfinite().all(), values, torch.nan)


def _length(x: Tensor) -> int:
    if x.dtype != torch.float32 or x.dim() != 1 or not x.is_contiguous() or x.numel() > LARGEST:
        raise ValueError(
            f"selection reads contiguous float32 vectors of less than 2^31 elements; got {x.dtype} of shape "
            f"{tuple(x.shape)}: write x.float().contiguous().view(-1)"
        )
    return x.numel()
