"""DeMo's code: the k largest coefficients of the cosine transform of every chunk, up to 64 x 64, of every tensor.

Sends one float32, and for each chunk k values (bf16) and k places of 12 bits: 28 x 32 / 4096 = 0.219 bits per element
where chunks are 64 x 64. A matrix is cut into chunks whose sides are the largest divisors up to 64 of its own, and a
vector likewise along its one axis; a chunk with fewer than k elements is sent whole.

    c = DCT(chunk),   the k largest |c| are kept,   decoded: DCT^-1

The DCT-II is orthonormal, so that |C(x) - x|^2 is the energy of the coefficients left out: a contraction with
delta = k / chunk elements (0.999 of it, for bf16). A chunk that holds NaN or inf decodes to NaN.

>>> from thinwire.core.types import Layout
>>> 8 * DctTopK().nbytes(Layout(("w",), ((1024, 1024),))) / (1 << 20)
0.218780517578125
>>> divisor(96, 64), divisor(127, 64)
(48, 1)

Reference: Peng, Quesnelle, Kingma, "Decoupled momentum optimization", 2024, arXiv 2411.19870, algorithm 1 and the
authors' code.

Departs from the code: values are bf16 and places packed, where it sends fp32 and int64. Coefficients are divided by a
power of two near the largest element (the float32) before the transform, so that none overflows. The transform sums
in a fixed order in float32. Tensors of more than two axes are matrices of their first axis against the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

import torch

from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.compressors.basis import BasisCompressor
from thinwire.compressors.sparse import index_width, refuse, write_values
from thinwire.core.compressor import Biased
from thinwire.kernels import hadamard, selection
from thinwire.kernels.dct import dct, idct

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


class Grid(NamedTuple):
    """How one tensor is cut: elements from `start`, `down` x `across` chunks of `m` x `n`."""

    start: int
    down: int
    across: int
    m: int
    n: int

    @property
    def stop(self) -> int:
        """Where the tensor ends."""
        return self.start + self.cells * self.m * self.n

    @property
    def cells(self) -> int:
        """Number of chunks."""
        return self.down * self.across

    def chunks(self, flat: Tensor) -> Tensor:
        """A copy of the tensor's elements, (chunks, m, n)."""
        cut = flat[self.start : self.stop].view(self.down, self.m, self.across, self.n)
        return cut.transpose(1, 2).reshape(self.cells, self.m, self.n).clone(memory_format=torch.contiguous_format)

    def join(self, chunks: Tensor) -> Tensor:
        """The inverse of `chunks`, flat."""
        return chunks.view(self.down, self.across, self.m, self.n).transpose(1, 2).reshape(-1)


def divisor(n: int, most: int) -> int:
    """The largest divisor of `n` up to `most`."""
    return next(size for size in range(min(n, most), 0, -1) if n % size == 0)


@lru_cache(maxsize=256)
def grids(layout: Layout, most: int) -> tuple[Grid, ...]:
    """The grid of every tensor that has elements."""
    out = []
    for start, size, shape in zip(layout.offsets, layout.sizes, layout.shapes, strict=False):
        if size:
            rows = shape[0] if len(shape) > 1 else 1
            m, n = divisor(rows, most), divisor(size // rows, most)
            out.append(Grid(start, rows // m, size // rows // n, m, n))
    return tuple(out)


def inverse(coefficients: Tensor, cut: tuple[Grid, ...]) -> Tensor:
    """The vector of the coefficients of all chunks."""
    out = torch.empty_like(coefficients)
    for grid in cut:
        part = coefficients[grid.start : grid.stop].view(grid.cells, grid.m, grid.n)
        out[grid.start : grid.stop] = grid.join(idct(part))
    return out


@final
@dataclass(frozen=True)
class DctTopK(Biased, BasisCompressor):
    """The `k` largest coefficients of every chunk of up to `chunk` x `chunk`."""

    name: ClassVar[str] = "dct-topk"
    decodes_any: ClassVar[bool] = True
    chunk: int = 64
    k: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= 256 or self.k < 1:
            raise ValueError(f"DctTopK(chunk={self.chunk}, k={self.k}): write 1 <= chunk <= 256 and k >= 1")

    def delta(self, d: int) -> float | None:
        """The share that is kept of the largest possible chunk."""
        return 0.999 * min(1.0, self.k / max(1, min(d, self.chunk**2)))

    def nbytes(self, layout: Layout) -> int:
        """The bytes of the unit, the values and the places."""
        count = self._count(layout)
        return 4 + 2 * count + wide_bytes(count, index_width(self.chunk**2))

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Transform, pick and pack."""
        wide = torch.where(x.isfinite(), x.float(), torch.nan)  # inf would be saturated on its way back
        unit = hadamard.unit(wide)
        picked = [
            selection.top_blocks(dct(grid.chunks(wide / unit)).view(-1), grid.m * grid.n, self.k)
            for grid in grids(layout, self.chunk)
        ]
        places = torch.cat([torch.empty(0, dtype=torch.int32, device=x.device), *(one[0] for one in picked)])
        values = torch.cat([torch.empty(0, device=x.device), *(one[1] for one in picked)])
        stop = 4 + 2 * values.numel()
        body[:4].view(torch.float32)[0] = unit
        write_values(values, body[4:stop], "bf16")
        body[stop:].copy_(pack_wide(places, index_width(self.chunk**2)))
        return None

    def read(self, body: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Unpack; places count through the chunks of all tensors."""
        count = self._count(layout)
        stop = 4 + 2 * count
        inside = unpack_wide(body[stop:], count, index_width(self.chunk**2))
        bases, sizes = [], []
        for grid in grids(layout, self.chunk):
            size = grid.m * grid.n
            first = grid.start + size * torch.arange(grid.cells, device=body.device)
            bases.append(first.repeat_interleave(min(self.k, size)))
            sizes.append(torch.full_like(bases[-1], size))
        base, size_of = torch.cat([inside[:0], *bases]), torch.cat([inside[:0], *sizes])
        values, bad = body[4:stop].view(torch.bfloat16).float(), inside >= size_of
        places, values = refuse(bad, base + inside, values, f"{self.id}: a place lies outside its chunk")
        unit = body[:4].view(torch.float32)[0] if body.numel() else torch.ones(())
        good = unit.isfinite() if body.is_cpu else unit.isfinite() & ~bad.any()
        return places, values, torch.where(good, unit, torch.nan)

    def synthesise(self, coefficients: Tensor, layout: Layout) -> Tensor:
        """The inverse transform of every chunk."""
        return inverse(coefficients, grids(layout, self.chunk))

    def _count(self, layout: Layout) -> int:
        return sum(grid.cells * min(self.k, grid.m * grid.n) for grid in grids(layout, self.chunk))
