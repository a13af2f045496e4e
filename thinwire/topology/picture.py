"""Graphs as text: up to 32 ranks as a circle of numbers, more of them as a matrix of dots, one per edge.

Lines and dots are braille characters, of two by four dots each, so that dots lie about as far apart across as down.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from thinwire.topology.mixing import matrices

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.topology.base import Topology

CIRCLE = 32  # ranks; more of them leave no room for their numbers
DOTS = 192  # of the matrix, across and down
BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille character, by column and row


def edges(topology: Topology, n: int) -> Tensor:
    """Who takes from whom, (n, n) bool: in any step of a period, or in step 0 where W never repeats."""
    ws = [topology.matrix(n)] if topology.period(n) is None else list(matrices(topology, n))
    return torch.stack(ws).sum(0).fill_diagonal_(0) > 0


def picture(topology: Topology, n: int) -> str:
    """The graph as a drawing in text."""
    near = edges(topology, n)
    return _circle(near) if n <= CIRCLE else _matrix(near)


def neighbours(topology: Topology, n: int) -> str:
    """One line per rank: the ranks that it takes from."""
    wide = len(str(n - 1))
    rows = [" ".join(f"{j:>{wide}}" for j in range(n) if row[j]) for row in edges(topology, n).tolist()]
    return "\n".join(f"{i:>{wide}}: {row}" for i, row in enumerate(rows))


def caption(topology: Topology, n: int) -> str:
    """What the picture shows."""
    period = topology.period(n)
    when = (
        "the draw of step 0" if period is None else f"the {period} steps of a period together" if period > 1 else ""
    )
    what = "ranks in a circle" if n <= CIRCLE else "a dot in row i, column j: rank i takes from rank j"
    return "; ".join(filter(None, (what, when)))


def _circle(near: Tensor) -> str:
    n = len(near)
    radius = max(28, min(60, 4 * n))
    page = _Page(2 * radius + 20, 2 * radius + 20)
    middle = radius + 10
    turns = [2 * math.pi * i / n for i in range(n)]
    ends = [(round(middle + radius * math.sin(turn)), round(middle - radius * math.cos(turn))) for turn in turns]
    for i, j in near.nonzero().tolist():
        page.line(*ends[i], *ends[j])
    for i, turn in enumerate(turns):
        across, up = math.sin(turn), math.cos(turn)
        page.write(*ends[i], "o")
        page.write(middle + (radius + 6) * across, middle - (radius + 4) * up, str(i), side=across)
    return page.text()


def _matrix(near: Tensor) -> str:
    size = -(-len(near) // DOTS)  # ranks per dot
    dots = torch.nn.functional.max_pool2d(near[None, None].float(), size, ceil_mode=True)[0, 0]
    page = _Page(len(dots), len(dots))
    for y, x in dots.nonzero().tolist():
        page.dot(x, y)
    return page.text()


class _Page:
    """Dots and words on a grid of braille characters."""

    def __init__(self, width: int, height: int) -> None:
        self.cells = [[0] * -(-width // 2) for _ in range(-(-height // 4))]
        self.words: dict[tuple[int, int], str] = {}

    def dot(self, x: int, y: int) -> None:
        self.cells[y // 4][x // 2] |= BITS[x % 2][y % 4]

    def line(self, x: int, y: int, to_x: int, to_y: int) -> None:
        count = max(1, abs(to_x - x), abs(to_y - y))
        for k in range(count + 1):
            part = k / count
            self.dot(round(x + part * (to_x - x)), round(y + part * (to_y - y)))

    def write(self, x: float, y: float, word: str, side: float = 0) -> None:
        """Write `word` over the dots: it starts there for side 1, ends there for side -1, is centred there for 0."""
        start = round((x - 0.5) / 2 - (len(word) - 1) * (1 - side) / 2)
        for k, letter in enumerate(word):
            self.words[int(y // 4), start + k] = letter

    def text(self) -> str:
        lines = []
        for y, row in enumerate(self.cells):
            letters = (self.words.get((y, x), chr(0x2800 + bits) if bits else " ") for x, bits in enumerate(row))
            lines.append("".join(letters).rstrip())
        return "\n".join(lines).strip("\n")
