"""Wangni's sparsification: each element survives with a probability in proportion to its size, without bias.

With an expected number s = ratio d of survivors, the probabilities that make the variance smallest are

    p_i = min(lambda |x_i|, 1),  sum_i p_i = s        C(x)_i = x_i / p_i with probability p_i, else 0

lambda is found by the paper's greedy rounds: elements with lambda |x_i| >= 1 leave, the others share what remains of
s, until none leaves. A survivor with p_i < 1 is +-1/lambda, which is sent once; the others are sent as they are.
Sends 1/lambda (32 bits), for each survivor a field of 2 bits and its place (Golomb coded gaps), and 32 bits for each
with p_i = 1.

Bounds: E C(x) = x, E|C(x) - x|^2 <= (d/s - 1) |x|^2, attained where all |x_i| are equal; for a Gaussian near
(2/pi) d/s - 1. NaN or inf anywhere decodes to NaN everywhere.

>>> Wangni(ratio=0.1).omega(1000)
9.0

Reference: Wangni, Wang, Liu, Zhang, "Gradient sparsification for communication-efficient distributed optimization",
NeurIPS 2018, arXiv 1710.09854, algorithm 3.

Departs from the paper: the sums are of integers (|x_i| over the largest, in fixed point), so that they are the same
on every machine; the wire form is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.codecs.gaps import pack_gaps, unpack_gaps
from thinwire.compressors.sparse import check_count, most_gaps, read_head
from thinwire.core.bitpack import BitPack
from thinwire.core.compressor import Compressor
from thinwire.core.desk import fetched
from thinwire.core.errors import PayloadError
from thinwire.kernels import selection
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

TOP = torch.finfo(torch.float32).max
WHOLE = 2  # field of an element sent as it is; 0 and 1 are + and - 1/lambda


@final
@dataclass(frozen=True)
class Wangni(Compressor):
    """The share `ratio` of the elements on average, drawn by size."""

    name: ClassVar[str] = "wangni"
    fixed_size: ClassVar[bool] = False
    ratio: float = 0.01

    def __post_init__(self) -> None:
        check_count("Wangni", self.ratio, None)

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """d/s - 1: equal probabilities are never better."""
        return 1 / self.ratio - 1

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return 2 - 1 / self.ratio if self.ratio > 0.5 else None

    def nbytes(self, layout: Layout) -> int:
        """The bytes if all elements were sent as they are."""
        n = layout.numel
        return 8 + 4 * n + packed_bytes(n, 2) + most_gaps(n, n)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the count, 1/lambda, the fields, the whole values and the places."""
        wide, n = x.float(), x.numel()
        step = inverse_lambda(wide, self.ratio * n)
        good = math.isfinite(step)
        magnitude = wide.abs().double()
        chance = torch.where(magnitude > 0, magnitude / step, 0.0)
        noise = kernels.select(wide).noise(key, n).to(x.device)
        sent = (chance >= 1) | (noise < (chance.clamp(max=1.0) * 2.0**32).long())
        indices = (sent & good).nonzero()[:, 0]
        values, whole = wide[indices], chance[indices] >= 1
        fields = torch.where(whole, WHOLE, (values < 0).long()).to(torch.uint8)
        body[:4].view(torch.int32).fill_(indices.numel())
        body[4:8].view(torch.float32).fill_(step)
        at = 8
        for part in (BitPack().pack(fields, 2), values[whole].view(torch.uint8), pack_gaps(indices, n)):
            body[at : at + part.numel()].copy_(part)
            at += part.numel()
        return at

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add what survived."""
        count, unit = read_head(body, layout.numel)
        at = 8 + packed_bytes(count, 2)
        if body.numel() < at:
            raise PayloadError(f"{self.id}: {count} fields take {at} bytes; {body.numel()} arrived")
        if not math.isfinite(unit):
            out.fill_(math.nan)
            return
        fields = BitPack().unpack(body[8:at], count, 2)
        whole = fields == WHOLE
        kept, wrong = fetched(torch.stack([whole.sum(), (fields > WHOLE).sum()]))
        stop = at + 4 * int(kept)
        if body.numel() < stop or wrong:
            raise PayloadError(f"{self.id}: the fields do not fit {body.numel()} bytes")
        step = body[4:8].view(torch.float32)
        values = torch.where(fields == 1, -step, step)
        values.masked_scatter_(whole, body[at:stop].clone().view(torch.float32))
        selection.add_at(out, unpack_gaps(body[stop:], count, layout.numel), values, weight)


def inverse_lambda(x: Tensor, s: float) -> float:
    """1/lambda such that the probabilities min(lambda |x_i|, 1) sum to `s`; a float32, 0 where all are 1 or x is 0.

    NaN where an element is not finite. A GPU is waited for once per round.

    >>> inverse_lambda(torch.tensor([8.0, 1.0, 1.0]), s=2.0)  # 8 is certain to go, the others share the rest
    2.0
    """
    largest = float(x.abs().max()) if x.numel() else 0.0
    if not largest or not math.isfinite(largest):
        return math.nan if largest else 0.0
    unit = 2.0 ** (62 - x.numel().bit_length())
    w = (x.abs().double() / largest * unit).round().long()  # sums of whole numbers do not depend on their order
    free, rate, before = torch.ones_like(w, dtype=torch.bool), 0.0, -1
    while True:
        count, total = (int(k) for k in fetched(torch.stack([free.sum(), torch.where(free, w, 0).sum()])))
        left = s - (w.numel() - count)
        if count == before or not total or left / total <= rate:
            break
        rate, before = left / total, count
        free &= w.double() * rate < 1
    step = min(largest / (rate * unit), TOP) if rate else 0.0
    return float(torch.tensor(step, dtype=torch.float32))
