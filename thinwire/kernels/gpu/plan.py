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
    """What the passes look up about ragged blocks."""

    starts: Tensor
    reach: Tensor  # by tile: the blocks that its first and its last element are in
    segments: Tensor  # (begin, end, block) of each
    parts: Tensor  # by block: its first segment
    longest: int


Queue = tuple[torch.device, torch.cuda.Stream | None]
HOST: Queue = torch.device("cpu"), None
_ragged: weakref.WeakKeyDictionary[Blocks, dict[Queue, Ragged]] = weakref.WeakKeyDictionary()


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
    """Made once for each layout, on the host, and copied for each stream; nothing waits.

    Another stream could read a copy before it has been made, or after its memory has become another tensor's.
    """
    known, queue = _ragged.setdefault(blocks, {}), _queue(device)
    if queue not in known:
        if HOST not in known:
            known[HOST] = _made(blocks)
        here = known[HOST]
        starts, reach, segments, parts = (t.to(device, non_blocking=True) for t in here[:4])
        known[queue] = Ragged(starts, reach, segments, parts, here.longest)
    return known[queue]


def _queue(device: torch.device) -> Queue:
    """Where what is launched now will run."""
    return device, torch.cuda.current_stream(device) if device.type == "cuda" else None


def _made(blocks: Blocks) -> Ragged:
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
    return Ragged(starts, reach.int(), torch.tensor(rows, dtype=torch.int64), torch.tensor(parts), longest)
