"""Consensus: the mean of all ranks' models, and how far they are from it.

    distance = sqrt((1/n) sum_i |x_i - mean|^2)

The exact distance takes a sum over all ranks. During training it is estimated from a few thousand elements, the same
ones on every rank: |v|^2 of d elements is, on average, d/m times that of m elements drawn with replacement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.engine.bucket import Bucket

SAMPLED = 8192  # elements of a bucket that an estimate looks at


class Consensus(NamedTuple):
    """What `Wire.consensus` returns, the same on every rank."""

    model: dict[str, Tensor]  # the mean, by parameter
    distance: float  # from the models to it, as the root mean square over ranks

    @classmethod
    def of(cls, buckets: Sequence[Bucket], found: Sequence[tuple[Tensor, float]]) -> Consensus:
        """From the mean and the distance of each bucket."""
        model = {
            item.name: part.clone()
            for bucket, (mean, _) in zip(buckets, found, strict=True)
            for item, part in zip(bucket.items, bucket.cut(mean), strict=True)
        }
        return cls(model, sum(distance**2 for _, distance in found) ** 0.5)


async def average(comm: Comm, x: Tensor, *, some_gone: bool) -> Tensor:
    """The mean over the ranks that are still there, in rank order, so that it has the same bits on each."""
    if not some_gone:
        return await comm.all_reduce(x.clone()) / comm.size
    others = [rank for rank in range(comm.size) if rank != comm.rank and rank not in comm.gone]
    heard = {**await comm.swap(x, others, equal=True), comm.rank: x}
    return torch.stack([heard[rank] for rank in sorted(heard)]).mean(0)


async def apart(comm: Comm, x: Tensor, *, some_gone: bool) -> tuple[Tensor, float]:
    """The mean, and the distance to it."""
    mean = await average(comm, x, some_gone=some_gone)
    square = (x - mean).double().square().sum().reshape(1)
    return mean, float(await average(comm, square, some_gone=some_gone)) ** 0.5


def sample(buckets: Sequence[Bucket], seed: int, step: int) -> Tensor:
    """A short vector whose length is, on average, that of all buckets."""
    parts = []
    for bucket in buckets:
        d = bucket.layout.numel
        if d <= SAMPLED:
            parts.append(bucket.flat.cpu())
            continue
        noise = torch.Generator().manual_seed((seed + 1) * 1_000_003 + step * 1009 + bucket.index)
        places = torch.randint(d, (SAMPLED,), generator=noise).to(bucket.flat.device)
        parts.append(bucket.flat[places].cpu() * (d / SAMPLED) ** 0.5)
    return torch.cat(parts)
