"""ATOMO on Fourier atoms: cosines of every chunk of every tensor, each sent with a probability, without bias.

With c = DCT(g), which is orthonormal, so that |c| = |g|, and a budget of s = budget d atoms:

    g^ = DCT^-1(t c / p),    t_i ~ Bernoulli(p_i),    sum_i p_i = s
    E|g^ - g|^2 = sum_i c_i^2 (1/p_i - 1)

The p_i are those of `thinwire.compressors.atomo` for the magnitudes |c_i|. They pay where g is smooth along an axis
of its tensor: few cosines then hold most of it.

Sends a unit and the number of atoms (32 bits each), their values (32 bits) and their places among all coefficients
(Golomb coded gaps). Chunks are those of `DctTopK`. omega = d/s - 1, which equal p_i attain. NaN or inf anywhere
decodes to NaN everywhere.

>>> AtomoFourier(budget=0.25).omega(1000)
3.0

Reference: Wang, Sievert, Liu, Charles, Papailiopoulos, Wright, "ATOMO: communication-efficient learning via atomic
sparsification", NeurIPS 2018, arXiv 1806.04090, algorithm 1 and section 3, which names the Fourier basis.

Departs from the paper: the basis is the real cosine transform (DCT-II) of chunks of up to 64 x 64, not the complex
transform of a whole vector: a chunk is cheap, and its coefficients are as many as its elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire import kernels
from thinwire.codecs.gaps import pack_gaps, unpack_gaps
from thinwire.compressors.atomo import probabilities, sample
from thinwire.compressors.basis import TOP, BasisCompressor
from thinwire.compressors.block import contraction
from thinwire.compressors.dct_topk import grids, inverse
from thinwire.compressors.sparse import most_gaps, read_count
from thinwire.core.desk import brought
from thinwire.core.errors import PayloadError
from thinwire.kernels import hadamard
from thinwire.kernels.dct import dct

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


@final
@dataclass(frozen=True)
class AtomoFourier(BasisCompressor):
    """The share `budget` of the cosines on average, of chunks of up to `chunk` x `chunk`."""

    name: ClassVar[str] = "atomo-fourier"
    fixed_size: ClassVar[bool] = False
    budget: float = 0.01
    chunk: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise ValueError(f"AtomoFourier(budget={self.budget}): write the share of the cosines, 0 < budget <= 1")
        if self.chunk < 1:
            raise ValueError(f"AtomoFourier(chunk={self.chunk}): write the side of a chunk, such as 64")

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """d/s - 1."""
        return 1 / self.budget - 1

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))

    def nbytes(self, layout: Layout) -> int:
        """The bytes if all cosines were sent."""
        return 8 + 4 * layout.numel + most_gaps(layout.numel, layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Transform, draw, and write the count, the unit, the values and the places."""
        wide, n = x.float(), x.numel()
        good = wide.isfinite().all()
        wide = torch.where(good, wide, 0.0)
        unit = hadamard.unit(wide)
        c = torch.zeros_like(wide)
        for grid in grids(layout, self.chunk):
            c[grid.start : grid.stop] = dct(grid.chunks(wide / unit)).view(-1)
        c = brought(c)  # sums are made there, one after another
        drawn, had = sample(probabilities(c.abs(), self.budget * n), kernels.get("cpu").noise(key, n))
        at = drawn.nonzero()[:, 0]
        places, stop = pack_gaps(at, n), 8 + 4 * at.numel()
        body[:4].view(torch.int32).fill_(at.numel())
        body[4:8].view(torch.float32).copy_(torch.where(good, unit, math.nan))
        body[8:stop].view(torch.float32).copy_((c[at].double() / had[at]).clamp(-TOP, TOP))
        body[stop : stop + places.numel()].copy_(places)
        return stop + places.numel()

    def read(self, body: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """The cosines that were drawn."""
        count = read_count(body, layout.numel)
        stop = 8 + 4 * count
        if body.numel() < stop:
            raise PayloadError(f"{self.id}: {count} values take {stop} bytes; {body.numel()} arrived")
        unit, values = body[4:8].clone().view(torch.float32)[0], body[8:stop].clone().view(torch.float32)
        return unpack_gaps(body[stop:], count, layout.numel), values, unit

    def synthesise(self, coefficients: Tensor, layout: Layout) -> Tensor:
        """The inverse transform of every chunk."""
        return inverse(coefficients, grids(layout, self.chunk))
