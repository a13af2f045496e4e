"""Sparse binary compression: the places of the largest elements of one sign, and their mean.

Sends one number (32 bits) and at most k = round(ratio d) places (Golomb coded gaps):

    V+ = the k largest positive elements, V- = the k largest negative ones (by magnitude), mu+, mu- their mean sizes
    C(x) = mu+ on V+ if mu+ >= mu-, else -mu- on V-

Bounds: |C(x) - x|^2 <= (1 - 1/(d k^2)) |x|^2 for every x, and usually far less: m elements of mean mu take
m mu^2 away. Wire: about log2(d/k) + 1.5 bits for each place. NaN or inf anywhere decodes to NaN everywhere.

>>> import torch
>>> from thinwire.core.types import Layout
>>> c = Sbc(ratio=0.4)
>>> c.decode(c.encode(torch.tensor([3.0, -1.0, 1.0, -1.0, 0.0])), Layout.flat(5))
tensor([2., 0., 2., 0., 0.])

Reference: Sattler, Wiedemann, Mueller, Samek, "Sparse binary compression: towards distributed deep learning with
minimal communication", 2018, arXiv 1805.08768, algorithm 2.

Departs from the paper: sides with fewer than k elements send those they have; k is that of a message, not of a
tensor. The bound is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.codecs.gaps import pack_gaps, unpack_gaps
from thinwire.compressors.sparse import check_count, how_many, most_gaps, read_head
from thinwire.core.compressor import Biased
from thinwire.core.desk import fetched
from thinwire.core.errors import PayloadError
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


@final
@dataclass(frozen=True)
class Sbc(Biased):
    """One sign of the largest `ratio` of the elements, as their mean."""

    name: ClassVar[str] = "sbc"
    fixed_size: ClassVar[bool] = False
    ratio: float = 0.01

    def __post_init__(self) -> None:
        check_count("Sbc", self.ratio, None)

    def delta(self, d: int) -> float | None:
        """1/(d k^2): the mean of the side that wins is at least max|x_i| / k."""
        return 1 / (max(1, d) * max(1, how_many(self.ratio, None, d)) ** 2)

    def nbytes(self, layout: Layout) -> int:
        """The bytes of count, mean and gaps, at most."""
        return 8 + most_gaps(how_many(self.ratio, None, layout.numel), layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the side with the larger mean."""
        wide, k = x.float(), how_many(self.ratio, None, x.numel())
        up, down = (selection.top(side.clamp(min=0.0), k) for side in (wide, -wide))
        ups, high, downs, low = fetched(torch.stack([*_facts(up[1]), *_facts(down[1])]))
        (indices, values), count, mean = (up, ups, high) if high >= low else (down, downs, -low)
        if not math.isfinite(high + low):  # what is not finite is among the largest of its side
            indices, mean = indices[:0], math.nan
        elif count < k:
            indices = indices[values > 0]
        places = pack_gaps(indices, layout.numel)
        body[:4].view(torch.int32).fill_(indices.numel())
        body[4:8].view(torch.float32).fill_(mean)
        body[8 : 8 + places.numel()].copy_(places)
        return 8 + places.numel()

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add the mean at the places."""
        count, mean = read_head(body, how_many(self.ratio, None, layout.numel))
        if body.numel() < 8:
            raise PayloadError(f"{self.id} has at least 8 body bytes; {body.numel()} arrived")
        if not math.isfinite(mean):
            out.fill_(math.nan)
            return
        indices = unpack_gaps(body[8:], count, layout.numel)
        selection.add_at(out, indices, body[4:8].view(torch.float32).expand(count), weight)


def _facts(values: Tensor) -> tuple[Tensor, Tensor]:
    """How many are positive, where others are 0, and their mean, summed one by one to be the same everywhere."""
    count = (values > 0).sum()
    return count.double(), values.double().cumsum(0)[-1:].sum() / count.clamp(min=1)
