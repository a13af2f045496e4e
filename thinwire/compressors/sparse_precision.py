"""Sparse-AsyLPG's compressor: Wangni's draw, then random rounding of what survives to a low-precision domain.

With an expected number s = ratio d of survivors:

    b_i = a_i / p_i with probability p_i = min(lambda |a_i|, 1), else 0
    C(a) = Q(b),    delta = max|b| / (2^(bits-1) - 1),    Q rounds to a multiple of delta at random

Sends delta and the number of survivors (32 bits each), for each survivor a field of `bits` bits and its place (Golomb
coded gaps).

Bounds: E C(a) = a, and E|C(a) - a|^2 <= (d/s) (1 + omega_Q) - 1 times |a|^2, omega_Q the bound of the rounding alone.
NaN or inf anywhere decodes to NaN everywhere.

>>> round(SparsePrecision(ratio=0.1, bits=8).omega(1000), 2)
9.15

Reference: Yu, Wu, Huang, "Double quantization for communication-efficient distributed optimization", NeurIPS 2019,
arXiv 1805.10111, algorithm 2, which sparsifies as Wangni et al., arXiv 1710.09854.

Departs from the paper: probabilities are capped at 1, where it asks for a budget with which none would be larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.codecs.gaps import pack_gaps, unpack_gaps
from thinwire.compressors.block import check_bits, contraction, omega_max
from thinwire.compressors.sparse import check_count, most_gaps, read_head
from thinwire.compressors.wangni import inverse_lambda
from thinwire.core.bitpack import BitPack
from thinwire.core.compressor import Compressor
from thinwire.core.errors import PayloadError
from thinwire.kernels import selection
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

TOP = torch.finfo(torch.float32).max
ROUNDING = 7  # hops between the noise of the draw and that of the rounding


@final
@dataclass(frozen=True)
class SparsePrecision(Compressor):
    """The share `ratio` of the elements on average, in `bits` bits each."""

    name: ClassVar[str] = "sparse-precision"
    fixed_size: ClassVar[bool] = False
    ratio: float = 0.1
    bits: int = 8

    def __post_init__(self) -> None:
        check_count("SparsePrecision", self.ratio, None)
        check_bits("SparsePrecision", self.bits, lowest=2)

    @property
    def top(self) -> int:
        """The largest multiple of delta."""
        return (1 << (self.bits - 1)) - 1

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """(d/s) (1 + omega_Q) - 1."""
        return (1 + omega_max(self.top, d)) / self.ratio - 1

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))

    def nbytes(self, layout: Layout) -> int:
        """The bytes if all elements survived."""
        n = layout.numel
        return 8 + packed_bytes(n, self.bits) + most_gaps(n, n)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Draw, round, and write the count, delta, the fields and the places."""
        wide, n = x.float(), x.numel()
        good = selection.finite(x)
        inverse = inverse_lambda(wide, self.ratio * n) if good else 0.0
        size = wide.double().abs()
        draw = kernels.select(wide).noise(key, n).to(x.device)
        chance = torch.where(size > 0, size / inverse, 0.0).clamp(max=1.0)
        at = ((draw < (chance * 2.0**32).long()) & good).nonzero()[:, 0]
        b = wide[at].double().sign() * size[at].clamp(min=inverse)
        step = torch.tensor(float(b.abs().max()) / self.top if at.numel() else 0.0).item()
        up = kernels.select(wide).noise(key.fold(hop=key.hop + ROUNDING), n).to(x.device)[at].double() / 2.0**32
        q = (b / (step or 1.0) + up).floor().clamp(-self.top, self.top)
        fields = BitPack().pack((q + self.top).to(torch.uint8), self.bits)
        places, stop = pack_gaps(at, n), 8 + fields.numel()
        body[:4].view(torch.int32).fill_(at.numel())
        body[4:8].view(torch.float32).fill_(step if good else math.nan)
        body[8:stop].copy_(fields)
        body[stop : stop + places.numel()].copy_(places)
        return stop + places.numel()

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add what survived."""
        count, delta = read_head(body, layout.numel)
        stop = 8 + packed_bytes(count, self.bits)
        if body.numel() < stop:
            raise PayloadError(f"{self.id}: {count} fields take {stop} bytes; {body.numel()} arrived")
        if not math.isfinite(delta):
            out.fill_(math.nan)
            return
        step = body[4:8].clone().view(torch.float32)
        q = BitPack().unpack(body[8:stop], count, self.bits).float() - self.top
        values = (q * step).clamp(-TOP, TOP)
        selection.add_at(out, unpack_gaps(body[stop:], count, layout.numel), values, weight)
