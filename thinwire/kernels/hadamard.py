"""Random rotations of blocks: r = H D x, H the normalised Walsh-Hadamard matrix, D random signs from a key.

Blocks have `block` = 2^k elements; the last one is padded with zeros to a power of two of at least `least`. H is k
stages of butterflies (a + b, a - b) in float32, at distances 1, 2, 4, ..., then one multiplication by 2^(-k/2). The
sign of element e is bit e % 32 of word (e / 32) % 4 of Philox at counter e / 128. Several rotations are applied in
turn.

The plain torch here is the definition of the bits; the functions ask the table for a faster one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from thinwire.kernels import philox
from thinwire.kernels.spec import TOP
from thinwire.kernels.table import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.kernels.key import Key

LARGEST = 1 << 16
STREAMS = (128, 192)  # added to the key's hop: the noise of rotations is not the noise of rounding


@dataclass(frozen=True)
class Blocking:
    """How `n` elements are cut into blocks."""

    n: int
    block: int
    least: int = 1

    @property
    def full(self) -> int:
        """How many blocks have no padding."""
        return self.n // self.block

    @property
    def last(self) -> int:
        """Floats of the padded block, or 0 if there is none."""
        rest = self.n % self.block
        return max(min(self.least, self.block), 1 << (rest - 1).bit_length()) if rest else 0

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.full + (self.last > 0)

    @property
    def padded(self) -> int:
        """Floats of all blocks, padding included."""
        return self.full * self.block + self.last

    def parts(self, flat: Tensor) -> list[Tensor]:
        """(blocks, size) views of `padded` floats: the full blocks, then the last; empty ones are left out."""
        cut = self.full * self.block
        both = (flat[:cut].view(-1, self.block), flat[cut:].view(1, -1))
        return [part for part in both if part.numel()]


def streams(key: Key, rotations: int) -> list[list[int]]:
    """The Philox words of each rotation's signs."""
    return [key.fold(hop=key.hop ^ stream).words() for stream in STREAMS[:rotations]]


def peak(x: Tensor) -> float:
    """The largest finite magnitude of float32 `x`."""
    return find("hadamard.peak", x, _peak)(x)


def _peak(x: Tensor) -> float:
    return float(torch.where(x.isfinite(), x.abs(), 0.0).max()) if x.numel() else 0.0


def unit(x: Tensor) -> float | Tensor:
    """A power of two near the largest finite magnitude: x / unit rotates without overflow; 1 where all are 0.

    On a GPU it is a scalar tensor, so that the host need not wait for it.
    """
    return find("hadamard.unit", x, _unit)(x)


def _unit(x: Tensor) -> float | Tensor:
    top = peak(x)
    return math.ldexp(1.0, max(-126, min(126, math.frexp(top)[1]))) if top else 1.0


def hadamard(x: Tensor, block: int) -> None:
    """H of every block of float32 `x`, whose size is a multiple of `block`; in place."""
    if block < 1 or block > LARGEST or block & (block - 1) or x.numel() % block:
        raise ValueError(f"hadamard of {x.numel()} elements: write a block of 2^0 .. 2^16 that divides them")
    if x.dtype != torch.float32 or not x.is_contiguous():
        raise ValueError(f"hadamard changes contiguous float32 in place; got {x.dtype}, strides {x.stride()}")
    find("hadamard.hadamard", x, _hadamard)(x, block)


def _hadamard(x: Tensor, block: int) -> None:
    x.view(-1, block).copy_(_transform(x.view(-1, block)))


def rotate(x: Tensor, cut: Blocking, words: Sequence[list[int]], factor: float | Tensor = 1.0) -> Tensor:
    """H D ... H D (factor x), `cut.padded` floats."""
    return find("hadamard.rotate", x, _rotate)(x, cut, words, factor)


def _rotate(x: Tensor, cut: Blocking, words: Sequence[list[int]], factor: float | Tensor) -> Tensor:
    out = torch.empty(cut.padded, device=x.device)
    out[: cut.n] = x * factor
    out[cut.n :] = 0.0
    for one in words:
        out = _each(out.mul_(signs(one, cut.padded, x.device)), cut)
    return out


def unrotate(r: Tensor, cut: Blocking, words: Sequence[list[int]]) -> Tensor:
    """The inverse, `cut.n` floats. `r` is overwritten."""
    out = torch.zeros(cut.n, device=r.device)
    unrotate_add(r, cut, words, out)
    return out


def unrotate_add(
    r: Tensor,
    cut: Blocking,
    words: Sequence[list[int]],
    out: Tensor,
    unit: float | Tensor = 1.0,
    weight: float = 1.0,
) -> None:
    """`out += weight * unit * (rotated back)`, in place, at most 2^126, NaN where not finite; `r` is overwritten."""
    find("hadamard.unrotate_add", r, _unrotate_add)(r, cut, words, out, unit, weight)


def _unrotate_add(
    r: Tensor, cut: Blocking, words: Sequence[list[int]], out: Tensor, unit: float | Tensor, weight: float
) -> None:
    for one in reversed(words):
        r = _each(r, cut).mul_(signs(one, cut.padded, r.device))
    y = r[: cut.n]
    out.copy_(out + torch.where(y.isfinite(), (y * unit).clamp(-TOP, TOP), torch.nan) * weight)


def signs(words: Sequence[int], n: int, device: torch.device) -> Tensor:
    """+1 and -1 of elements 0 .. n-1."""
    k0, k1, first, *rest = words
    calls = (torch.arange(-(-n // 128), device=device) + first) & philox.MASK
    drawn = torch.stack(philox.philox([calls, *(torch.full_like(calls, w) for w in rest)], (k0, k1)), 1)
    bits = (drawn.view(-1, 1) >> torch.arange(32, device=device)) & 1
    return (1 - 2 * bits.view(-1)[:n]).float()


def halving_sum(rows: Tensor) -> Tensor:
    """The sum of each row, 2^k long, in an order that is the same everywhere."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]


def _transform(rows: Tensor) -> Tensor:
    count, size = rows.shape
    h = 1
    while h < size:
        pairs = rows.view(count, -1, 2, h)
        a, b = pairs.unbind(2)
        rows = torch.stack([a + b, a - b], 2).view(count, size)
        h *= 2
    return rows * torch.tensor(math.sqrt(1.0 / size), dtype=torch.float32, device=rows.device)


def _each(flat: Tensor, cut: Blocking) -> Tensor:
    return torch.cat([flat[:0], *(_transform(part).view(-1) for part in cut.parts(flat))])
