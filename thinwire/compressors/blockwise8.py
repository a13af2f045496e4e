"""hivemind's blockwise 8 bits: elements divided by the largest magnitude of their block, on a grid finer near zero.

Sends one float32 per block and one byte per element: 8 + 32/B bits. The 256 points are 0, 1 and, for i = 0 .. 6 and
both signs, the middles of 2^i equal cells of [0.1, 1], times 10^(i-6). So each decade has half the points of the one
above it, and values down to 3e-7 of the largest are distinguished from zero.

    code = the nearest point to x / R,   R = max |x| of the block;   decoded: R times the point

A contraction: delta = 0.99 for blocks of 4096, from the spacing in each decade.

>>> len(points()), points()[[0, 126, 127, 128, -2, -1]].tolist()
(256, [-0.99296875, -5.5e-07, 0.0, 5.5e-07, 0.99296875, 1.0])

Reference: hivemind (learning-at-home), `compression/quantization.py`, BlockwiseQuantization; the grid is the dynamic
map of Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit optimizers via block-wise quantization", ICLR 2022,
arXiv 2110.02861, section 2.

Departs from the code: the points are the same for every vector, so they are not sent. Symbols are ordered by
magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from thinwire.compressors.block import check_block
from thinwire.compressors.byte_symbols import ByteSymbols, fold, unfold

if TYPE_CHECKING:
    from thinwire.core.types import Key, Layout

DECADES = 7
ZERO = 127  # where zero is among the points


@cache
def points() -> Tensor:
    """The 256 points, ascending, float64."""
    positive = [
        (0.1 + 0.9 * (2 * j + 1) / 2 ** (i + 1)) / 10 ** (DECADES - 1 - i)
        for i in range(DECADES)
        for j in range(2**i)
    ]
    return torch.tensor([*(-p for p in reversed(positive)), 0.0, *positive, 1.0], dtype=torch.float64)


@cache
def _borders(device: torch.device) -> Tensor:
    """The midpoints between neighbouring points, kept where they are used."""
    return ((points()[1:] + points()[:-1]) / 2).to(device)


@cache
def _table(device: torch.device) -> Tensor:
    """The points as they are decoded, kept where they are used."""
    return points().float().to(device)


@final
@dataclass(frozen=True)
class Blockwise8(ByteSymbols):
    """One byte per element and one scale for every `block` elements."""

    name: ClassVar[str] = "blockwise8"
    block: int = 4096

    def __post_init__(self) -> None:
        check_block("Blockwise8", self.block)

    def delta(self, d: int) -> float | None:
        """The largest element loses 0.007 of itself; the others at most half a cell of their decade."""
        others = min(d, self.block) - 1
        worst = 0.0
        for i in range(DECADES):
            half, least = 0.45 / 2**i / 10 ** (DECADES - 1 - i), 0.095 / 10 ** (DECADES - 1 - i)
            worst = max(worst, min(1.0, others * half**2 / (1 + others * least**2)))
        return 0.999 * (1 - worst)

    def side_bytes(self, layout: Layout) -> int:
        """The bytes of the scales."""
        return 4 * -(-layout.numel // self.block)

    def write_symbols(self, x: Tensor, layout: Layout, key: Key, side: Tensor) -> Tensor:
        """The scale of every block, and the nearest points."""
        n = layout.numel
        rows = torch.nn.functional.pad(x.float(), (0, -n % self.block)).view(-1, self.block)
        top = rows.abs().amax(1) if n else rows.new_empty(0)
        top = torch.where(top.isfinite(), top, torch.nan)
        side.view(torch.float32).copy_(top)
        ratio = torch.where(
            top > 0, rows.T.double() / top.double(), 0.0
        ).T  # 0 in a block with NaN, whose scale is NaN
        codes = torch.searchsorted(_borders(x.device), ratio.contiguous())
        return fold(codes.view(-1)[:n], ZERO)

    def add_symbols(self, side: Tensor, symbols: Tensor, layout: Layout, out: Tensor, weight: float) -> None:
        """Scale and add."""
        scale = side.view(torch.float32).repeat_interleave(self.block)[: layout.numel]
        out.copy_(out + _table(side.device)[unfold(symbols, ZERO)] * scale * weight)
