"""Frames that are coded together: their scratch memory, and the table that tells kernels where each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from thinwire.kernels.gpu.launch import taken_to
from thinwire.kernels.gpu.rans_plan import ROW
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

LINE = 16  # bytes that a thread loads at a time, at most


class Scratch(NamedTuple):
    """The parts of the first frame; those of the others lie `stride` lines further each."""

    parts: list[Tensor]
    stride: int

    def addresses(self, part: Tensor, frames: int) -> list[int]:
        """Where each frame has its part."""
        return [part.data_ptr() + LINE * self.stride * frame for frame in range(frames)]


def scratch(device: torch.device, frames: int, *parts: tuple[torch.dtype, int]) -> Scratch:
    """Memory for numbers of these types, so many of each per frame; those of the first part are zero.

    >>> made = scratch(torch.device("cpu"), 2, (torch.int64, 3), (torch.uint8, 5))
    >>> [part.dtype for part in made.parts], made.stride
    ([torch.int64, torch.uint8], 3)
    """
    nbytes = [aligned(dtype.itemsize * count, LINE) for dtype, count in parts]
    rows = torch.empty(frames, sum(nbytes), dtype=torch.uint8, device=device)
    rows[:, : nbytes[0]].zero_()
    first = [part.view(dtype) for part, (dtype, _) in zip(rows[0].split(nbytes), parts, strict=True)]
    return Scratch(first, sum(nbytes) // LINE)


def table(
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    symbols: Sequence[Tensor],
    width: int,
    inners: Sequence[tuple[int, int]],
) -> Tensor:
    """A row for each frame in the order of `rans_plan`, where kernels read it.

    `symbols` are its sources or its targets; `inners` are the last two numbers of each row.
    """
    rows = [
        (source.data_ptr(), target.data_ptr(), s.numel(), packed_bytes(s.numel(), width), *inner)
        for source, target, s, inner in zip(sources, targets, symbols, inners, strict=True)
    ]
    padded = [[*row, *[0] * (ROW.value - len(row))] for row in rows]
    return taken_to(symbols[0].device, torch.tensor(padded, dtype=torch.int64))


def aligned(n: int, to: int) -> int:
    """`n`, rounded up.

    >>> aligned(5, 4)
    8
    """
    return -(-n // to) * to


def in_lines(t: Tensor) -> bool:
    """Whether threads may load whole lines of it."""
    return t.data_ptr() % LINE == 0
