"""Rotated: any compressor after a random rotation, which spreads large elements over their block.

Sends a power of two near the largest magnitude (float32, in 8 bytes) and the inner compressor's body of

    r = H D x / unit    in blocks of B = `block` elements, D random signs from the key, the last block padded

and decodes x^ = unit D H y, where y is what the inner one decodes. H and D are orthogonal, so bias, omega and delta
are those of the inner compressor on the padded vector. For `KLevel` inside, Suresh's bound is smaller: with k levels

    E|x^ - x|^2 <= (2 ln B + 2) / (k - 1)^2 |x|^2    (g times that where a range covers g blocks)

because the largest coordinate of a rotated block is about sqrt(2 ln B / B) |x|. `Rotated(KLevel(k, block=B),
block=B)` is stochastic rotated quantisation. A NaN makes its whole block NaN.

Reference: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited communication", ICML 2017,
arXiv 1611.00429, section 3.

Departs from the paper: one rotation per block, not one per vector; payloads are rotated back one by one, with signs
of their own, where the paper's ranks share D and rotate the mean back once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.block import contraction
from thinwire.compressors.k_level import KLevel
from thinwire.core.coded import Coded
from thinwire.core.compressor import Compressor
from thinwire.core.errors import PayloadError
from thinwire.core.types import Layout
from thinwire.kernels import hadamard
from thinwire.kernels.hadamard import LARGEST, Blocking

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key

SIDE = 8  # bytes before the inner body, so that its numbers stay aligned
SMALLEST = 128  # elements of a block: the signs of one Philox call


@final
@dataclass(frozen=True)
class Rotated(Compressor):
    """`compressor` on randomly rotated blocks of `block` elements."""

    name: ClassVar[str] = "rotated"
    compressor: Compressor = field(default_factory=lambda: KLevel(block=4096))
    block: int = 4096

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, Compressor):
            raise TypeError(f"Rotated(compressor=...) takes a Compressor; got {self.compressor!r}")
        if not isinstance(self.block, int) or not SMALLEST <= self.block <= LARGEST or self.block & (self.block - 1):
            raise ValueError(f"Rotated(block={self.block}): write a power of two from {SMALLEST} to {LARGEST}")
        for fact in ("fixed_size", "keeps_scale"):  # elsewhere facts of the class, here of the inner compressor
            object.__setattr__(self, fact, getattr(self.compressor, fact))

    @property
    def unbiased(self) -> bool:
        """Whether the inner compressor is."""
        return self.compressor.unbiased

    def omega(self, d: int) -> float | None:
        """The inner compressor's on the padded vector, or Suresh's bound."""
        n = self.cut(d).padded
        inner = self.compressor.compressor if isinstance(self.compressor, Coded) else self.compressor
        bound = self.compressor.omega(n)
        if not isinstance(inner, KLevel) or bound is None:
            return bound
        size = min(self.block, n)
        spanned = max(1, -(-min(inner.block or n, n) // max(1, size)))
        return min(bound, spanned * (2 * math.log(max(1, size)) + 2) / (inner.k - 1) ** 2)

    def delta(self, d: int) -> float | None:
        """The inner compressor's on the padded vector, or a contraction where omega < 1."""
        return self.compressor.delta(self.cut(d).padded) or contraction(self.omega(d))

    def cut(self, n: int) -> Blocking:
        """The blocks of `n` elements."""
        return Blocking(n, self.block)

    def nbytes(self, layout: Layout) -> int:
        """The bytes of the unit and the inner body."""
        return SIDE + self.compressor.nbytes(self._inner(layout))

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | Tensor | None:
        """Rotate, then write with the inner compressor."""
        wide = x.float()
        unit = hadamard.unit(wide)
        side = body[:SIDE].view(torch.float32)
        side[0] = unit
        side[1:].zero_()
        r = hadamard.rotate(wide, self.cut(layout.numel), hadamard.streams(key, 1), 1 / unit)
        used = self.compressor.write(r, self._inner(layout), key, body[SIDE:])
        return None if used is None else SIDE + used

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Decode, rotate back, add."""
        if body.numel() < SIDE:
            raise PayloadError(f"{self.id} has at least {SIDE} body bytes; {body.numel()} arrived")
        unit = self._unit(body)
        cut = self.cut(layout.numel)
        r = torch.zeros(cut.padded, device=out.device)
        self.compressor.add(body[SIDE:], self._inner(layout), key, r, 1.0)
        hadamard.unrotate_add(r, cut, hadamard.streams(key, 1), out, unit, weight)

    def _unit(self, body: Tensor) -> float | Tensor:
        """The unit; on a GPU, where the host does not wait for it, NaN stands for one that is none."""
        sent = body[:4].view(torch.float32)[0]
        if not sent.is_cpu:
            return torch.where((sent > 0) & (sent < math.inf), sent, torch.nan)
        if not 0 < float(sent) < math.inf:
            raise PayloadError(f"{self.id}: a unit is a positive number; got {float(sent)}")
        return float(sent)

    def _inner(self, layout: Layout) -> Layout:
        return Layout.flat(self.cut(layout.numel).padded)
