"""Codes of rotated blocks, for DRIVE and EDEN: rotate, take the nearest centroid of every coordinate, find a scale.

With r the rotated block of B floats, c its centroids (signs times the nearest of a table to |r_i| sqrt(B)/|r|):

    unbiased   S = |r|^2 / <c, r>          biased   S = <c, r> / |c|^2

The first `share` of a block's coordinates take the table `high`, the others `low`; an empty table sends nothing and
decodes to 0. All coordinates of a rotated block have the same distribution, so which of them are first does not
matter. Sums are in float64, by halving. The plain torch here is the definition of the bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from thinwire.kernels import hadamard
from thinwire.kernels.spec import TOP
from thinwire.kernels.table import find

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.hadamard import Blocking


@dataclass(frozen=True)
class Tables:
    """Centroids of magnitudes, 2^(bits-1) of them, rising; `share` of the coordinates are coded with `high`."""

    high: tuple[float, ...]
    low: tuple[float, ...] = ()
    share: float = 1.0

    @property
    def bits(self) -> tuple[int, int]:
        """The bits of a code of `high` and of `low`, a sign above a magnitude; 0 where there is no code."""
        return len(self.high).bit_length(), len(self.low).bit_length()

    def split(self, size: int) -> int:
        """How many coordinates of a block take `high`."""
        return max(1, math.floor(self.share * size + 0.5))


def encode(
    x: Tensor, cut: Blocking, words: list[list[int]], factor: float | Tensor, tables: Tables, *, biased: bool
) -> tuple[Tensor, Tensor]:
    """One byte per coordinate, and the scales (float64) of the blocks of `factor` x."""
    return find("rotated_codes.encode", x, _encode)(x, cut, words, factor, tables, biased=biased)


def _encode(
    x: Tensor, cut: Blocking, words: list[list[int]], factor: float | Tensor, tables: Tables, *, biased: bool
) -> tuple[Tensor, Tensor]:
    return encode_rotated(hadamard.rotate(x, cut, words, factor), cut, tables, biased=biased)


def encode_rotated(r: Tensor, cut: Blocking, tables: Tables, *, biased: bool) -> tuple[Tensor, Tensor]:
    """The codes and scales of floats that are rotated already."""
    parts = [_encode_blocks(part, tables, biased=biased) for part in cut.parts(r)]
    return torch.cat([codes.view(-1) for codes, _ in parts]), torch.cat([scales for _, scales in parts])


def decode_add(
    codes: Tensor, scales: Tensor, cut: Blocking, words: list[list[int]], tables: Tables, out: Tensor, weight: float
) -> None:
    """`out += weight * decoded`, in place."""
    find("rotated_codes.decode_add", out, _decode_add)(codes, scales, cut, words, tables, out, weight)


def _decode_add(
    codes: Tensor, scales: Tensor, cut: Blocking, words: list[list[int]], tables: Tables, out: Tensor, weight: float
) -> None:
    values = torch.cat([_values(part, tables).view(-1) for part in cut.parts(codes)])
    y = hadamard.unrotate(values, cut, words)
    s = torch.where(scales.isfinite(), scales, torch.nan).repeat_interleave(cut.block)[: cut.n]
    out.copy_(out + (s * y).clamp(-TOP, TOP) * weight)


def _encode_blocks(r: Tensor, tables: Tables, *, biased: bool) -> tuple[Tensor, Tensor]:
    """Codes and scales of rotated blocks (count, size)."""
    size, split = r.shape[1], tables.split(r.shape[1])
    square = hadamard.halving_sum(r.double().square())
    root = torch.full_like(square, math.sqrt(size))
    k = torch.where(square > 0, root / square.sqrt(), 0.0).float()[:, None]
    sides = ((r[:, :split], tables.high), (r[:, split:], tables.low))
    codes, c = (torch.cat(both, 1) for both in zip(*(_nearest(part, k, t) for part, t in sides), strict=True))
    inner = hadamard.halving_sum(c.double() * r.abs().double())
    if biased:
        return codes, inner / hadamard.halving_sum(c.double().square())
    return codes, torch.where(square == 0, 0.0, square / inner)


def _nearest(r: Tensor, k: Tensor, table: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """(codes, centroids) of the magnitudes |r| k."""
    if not table:
        return torch.zeros_like(r, dtype=torch.uint8), torch.zeros_like(r)
    c = torch.tensor(table, dtype=torch.float32, device=r.device)
    bounds = (c[:-1] + c[1:]) * 0.5
    m = ((r.abs() * k)[..., None] > bounds).sum(-1)
    return (m | (r < 0).long() * len(table)).to(torch.uint8), c[m]


def _values(codes: Tensor, tables: Tables) -> Tensor:
    split = tables.split(codes.shape[1])
    sides = ((codes[:, :split], tables.high), (codes[:, split:], tables.low))
    return torch.cat([_look_up(part, table) for part, table in sides], 1)


def _look_up(codes: Tensor, table: tuple[float, ...]) -> Tensor:
    if not table:
        return torch.zeros_like(codes, dtype=torch.float32)
    c = torch.tensor(table, dtype=torch.float32, device=codes.device)[(codes % len(table)).long()]
    return torch.where(codes & len(table) != 0, -c, c)
