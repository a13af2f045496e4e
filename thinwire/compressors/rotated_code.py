"""RotatedCode: what DRIVE and EDEN share. A subclass names the centroids; blocks, scales and fields are handled here.

The body is one scale per block (float32), then the fields of the coordinates coded with the higher rate, then those
with the lower one; the signs of the rotations come from the sender's key.

The default is two rotations. The papers run one, but one does not mix a vector with few large elements: for
x = (a, b, 0, ..., 0), |a| > |b|, every coordinate of HDx has the sign of +-a and b is lost whatever D is. Measured on
blocks of 512 with 8000 draws of Drive, the squared bias over |x|^2 is .81 for (1, .9, 0, ...), .19 for a heavy-tailed
vector and .04 for one spike; with two rotations it is 7e-5, the level of the draws' own noise, for these and for
Gaussian, one-hot and constant vectors. In blocks of 64 two rotations still leave .009 for (1, .9, 0, ...), so the
last block is padded to 512 at least. With `rotations=1` the compressor is declared biased.

omega is the limit of a uniformly random rotation in high dimension, 1 / sum_i w_i E[c_i^2] - 1, plus 5%. The papers
prove the limit for uniformly random rotations; for two Hadamard rotations it is measured, not proved.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, final

import torch

from thinwire import kernels
from thinwire.core.compressor import Compressor
from thinwire.core.config import check_choice
from thinwire.kernels import hadamard, rotated_codes
from thinwire.kernels.hadamard import Blocking
from thinwire.kernels.spec import TOP, packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout
    from thinwire.kernels.rotated_codes import Tables

LEAST = 512  # floats of a block, padding included
MARGIN = 1.05


class RotatedCode(Compressor):
    """Rotate, take centroids, keep one scale per block."""

    biased: bool
    rotations: int
    block: int

    @property
    @abstractmethod
    def tables(self) -> Tables:
        """The centroids, and how the coordinates share them."""

    @property
    @abstractmethod
    def energy(self) -> float:
        """1 / (1 + omega) for a Gaussian r: the square of the mean of c |r|, over the mean of c^2."""

    @final
    @property
    def unbiased(self) -> bool:
        """Whether the scale is the unbiased one and there are two rotations; see the module's docstring."""
        return not self.biased and self.rotations > 1

    @final
    def omega(self, d: int) -> float | None:
        """The omega of a uniformly random rotation, plus 5%."""
        return MARGIN * (1 / self.energy - 1) if self.unbiased else None

    @final
    def delta(self, d: int) -> float | None:
        """With the biased scale 1 - omega / (1 + omega); with one rotation, the bound of the worst block."""
        if self.unbiased:
            return 1 - MARGIN * (1 / self.energy - 1) if MARGIN * (1 / self.energy - 1) < 1 else None
        if not self.biased:
            return None
        if self.rotations > 1:
            return 1 / (1 + MARGIN * (1 / self.energy - 1))
        firsts = [table[0] for table in (self.tables.high, self.tables.low) if table]
        size = self.cut(d).last or self.block
        if len(self.tables.high) == 1 and not self.tables.low:
            return 1 / size
        return min(firsts) ** 2 / ((4 + max(firsts) ** 2) * size)

    @final
    def cut(self, n: int) -> Blocking:
        """The blocks of `n` elements."""
        return Blocking(n, self.block, LEAST)

    @final
    def nbytes(self, layout: Layout) -> int:
        """The bytes of scales and fields."""
        cut = self.cut(layout.numel)
        return 4 * cut.count + sum(packed_bytes(n, bits) for n, bits in self._fields(cut))

    @final
    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Rotate, code, pack."""
        if not layout.numel:
            return None
        cut, words, wide = self.cut(layout.numel), hadamard.streams(key, self.rotations), x.float()
        unit = hadamard.unit(wide)
        codes, scales = rotated_codes.encode(wide, cut, words, 1 / unit, self.tables, biased=self.biased)
        side = scales.mul(unit).clamp(-TOP, TOP).float()
        body[: 4 * cut.count].view(torch.float32).copy_(torch.where(scales.isfinite(), side, torch.nan))
        at = 4 * cut.count
        for part, (n, bits) in zip(self._sides(codes, cut), self._fields(cut), strict=True):
            size = packed_bytes(n, bits)
            if size:
                kernels.select(codes).pack(part, bits, body[at : at + size])
            at += size
        return None

    @final
    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Unpack, look up, rotate back, scale, add."""
        cut, words = self.cut(layout.numel), hadamard.streams(key, self.rotations)
        codes = torch.zeros(cut.padded, dtype=torch.uint8, device=body.device)
        at = 4 * cut.count
        scales = body[:at].view(torch.float32)
        split = self.tables.split
        for low, (n, bits) in enumerate(self._fields(cut)):
            size = packed_bytes(n, bits)
            if not size:
                continue
            part = kernels.select(body).unpack(body[at : at + size], n, bits)
            at += size
            for rows in cut.parts(codes):
                first = split(rows.shape[1])
                place = rows[:, first:] if low else rows[:, :first]
                place.copy_(part[: place.numel()].view(place.shape))
                part = part[place.numel() :]
        rotated_codes.decode_add(codes, scales, cut, words, self.tables, out, weight)

    def _fields(self, cut: Blocking) -> list[tuple[int, int]]:
        """How many codes the higher and the lower rate have, and the bits of each."""
        high = cut.full * self.tables.split(cut.block) + (self.tables.split(cut.last) if cut.last else 0)
        bits = self.tables.bits
        return [(high, bits[0]), (cut.padded - high, bits[1])]

    def _sides(self, codes: Tensor, cut: Blocking) -> list[Tensor]:
        """The codes of the two rates, each in order."""
        if self.tables.share == 1:
            return [codes, codes[:0]]
        rows, split = cut.parts(codes), self.tables.split
        return [
            torch.cat([part[:, : split(part.shape[1])].reshape(-1) for part in rows]),
            torch.cat([part[:, split(part.shape[1]) :].reshape(-1) for part in rows]),
        ]


def check_rotation(name: str, rotations: int, block: int) -> None:
    """Refuse numbers of rotations and block sizes that cannot be used."""
    check_choice(name, "rotations", rotations, (1, 2))
    if not isinstance(block, int) or not LEAST <= block <= hadamard.LARGEST or block & (block - 1):
        raise ValueError(f"{name}(block={block}): write a power of two from {LEAST} to {hadamard.LARGEST}")


def gaussian_energy(table: tuple[float, ...]) -> float:
    """E[c^2] of the nearest centroid of a standard normal, for a Lloyd-Max table, for which E[c r] is the same.

    >>> round(gaussian_energy((math.sqrt(2 / math.pi),)), 4)  # 2 / pi
    0.6366
    """
    edges = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(table)), math.inf]
    tails = [math.erfc(edge / math.sqrt(2)) for edge in edges]
    return sum(c * c * (a - b) for c, a, b in zip(table, tails, tails[1:], strict=False))
