"""What the Triton tier works out before a launch: which tiles, how scales are found, what is known about blocks."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.kernels.spec import ROWS, TILE, Blocks, Kind, Norm, Quant

FUSED, EQUAL, RAGGED, WHOLE = 0, 1, 2, 3  # see gpu/blocks.py
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # blocks whose scales are found in the pass that encodes
SEGMENT = 1 << 16


class Part(NamedTuple):
    """Tiles for one launch: all full ones, or the narrow last one."""

    grid: int
    tiles: int
    tile0: int
    lanes: int
    full: bool
    per_program: int


class Ragged(NamedTuple):
    """What the passes look up about ragged blocks, on their device."""

    starts: Tensor
    reach: Tensor  # by tile: the blocks that its first and its last element are in
    segments: Tensor  # (begin, end, block) of each
    parts: Tensor  # by block: its first segment
    longest: int


_ragged: weakref.WeakKeyDictionary[Blocks, dict[torch.device, Ragged]] = weakref.WeakKeyDictionary()


def parts(n: int, per_program: int) -> list[Part]:
    """The launches for `n` elements."""
    full, rest = divmod(n, TILE)
    whole = [Part(-(-full // per_program), full, 0, TILE // ROWS, True, per_program)] if full else []
    return [*whole, Part(1, full + 1, full, -(-rest // ROWS), False, 1)] if rest else whole


def plain(blocks: Blocks) -> Blocks:
    """The same blocks, without boundaries to look up where there is but one."""
    return Blocks(blocks.n, size=blocks.n) if blocks.starts is not None and blocks.count == 1 and blocks.n else blocks


def mode(quant: Quant, blocks: Blocks, *, given: bool) -> int:
    """How an element finds its scale."""
    if quant.norm is Norm.NONE:
        return FUSED
    if blocks.starts is not None:
        return RAGGED
    if blocks.size in SIZES and quant.norm is not Norm.SIDES and not given:
        return FUSED
    return WHOLE if blocks.size % TILE == 0 or blocks.count == 1 else EQUAL


def passes(quant: Quant, blocks: Blocks, per_program: int, *, given: bool = False) -> list[tuple[Part, int]]:
    """The launches for all elements, each with how its elements find their scales."""
    how = mode(quant, blocks, given=given)
    narrow = EQUAL if how == FUSED else how  # rows of a narrow tile are not whole blocks
    return [(part, how if part.full else narrow) for part in parts(blocks.n, per_program)]


def constant(blocks: Blocks) -> int:
    """The size of blocks where it is a constant of the compiled pass: division by a power of two is a shift."""
    size = blocks.size
    return size if size and size & (size - 1) == 0 else 0


def noisy(quant: Quant) -> bool:
    """Whether rounding takes noise."""
    return quant.stochastic and quant.kind not in (Kind.SIGN, Kind.PAIR)


def table(blocks: Blocks, device: torch.device) -> Ragged:
    """Made once for each layout; the boundaries are known on the host, so that nothing waits."""
    known = _ragged.setdefault(blocks, {})
    if device not in known:
        assert blocks.starts is not None
        starts = blocks.starts.cpu()
        first = torch.arange(0, blocks.n, TILE)
        ends = torch.stack([first, (first + TILE - 1).clamp(max=blocks.n - 1)], 1)
        reach = torch.searchsorted(starts, ends, right=True) - 1
        rows, parts = [], [0]
        for block, (begin, end) in enumerate(blocks.ranges()):
            rows += [(at, min(at + SEGMENT, end), block) for at in range(begin, max(end, begin + 1), SEGMENT)]
            parts.append(len(rows))
        longest = int(starts.diff().max()) if blocks.count else 0
        made = (starts, reach.int(), torch.tensor(rows, dtype=torch.int64), torch.tensor(parts, dtype=torch.int64))
        there = [t.to(device, non_blocking=True) for t in made]
        known[device] = Ragged(there[0], there[1], there[2], there[3], longest)
    return known[device]
