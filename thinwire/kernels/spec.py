"""What a quantising pass must know: how a value becomes a field, and which elements share a scale.

Packing is planar. A tile is 512 elements: 8 rows of 64 lanes. Lane `l` holds the eight fields of elements
`r*64 + l`, row `r` at bit `width*r` of one number of `8*width` bits, and byte `j` of that number lies at
`j*64 + l`. The last tile may be narrower: `m` elements fill rows of `ceil(m/8)` lanes.
Noise follows the same lanes: rows 2w and 2w+1 take word w of the four Philox words at counter `tile*64 + l`, row 2w
with its halves swapped, so that each row's leading 16 bits are its own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor

LANES = 64
ROWS = 8
TILE = LANES * ROWS
TOP = 2.0**126  # scales stop here, so that no sum or product of a decoder overflows

HEADER, COVERED, FLAGS = 32, 28, 5
"""The bytes of a payload's header, those before its checksum, and the index of the one that holds the flags."""
CHECKED = 1
"""The flag that says that the checksum covers the body as well as the header."""


def together(width: int) -> int:
    """How many symbols of so many bits a GPU's rANS codes as one, side by side in a byte.

    >>> [together(width) for width in range(1, 9)]
    [8, 4, 2, 2, 1, 1, 1, 1]
    """
    return {1: 8, 2: 4, 3: 2, 4: 2}.get(width, 1)


def packed_bytes(n: int, width: int) -> int:
    """Bytes of `n` fields of `width` bits.

    >>> packed_bytes(512, 4), packed_bytes(1, 4)
    (256, 4)
    """
    full, rest = divmod(n, TILE)
    return (full * LANES + -(-rest // ROWS)) * width


class Kind(IntEnum):
    """How an element becomes a field, with block scale N and levels s."""

    SIGNED = 0  # sign * round(s |x| / N), two's complement
    UNSIGNED = 1  # round((x - lo) / step) on lo, lo + step, ..., lo + s * step
    SIGN = 2  # 1 where x >= 0; decodes to +N or -N
    DITHER = 3  # sign * index of a power of two: N 2^(index - s), and 0 for index 0
    NATURAL = 4  # the exponent of x (8 bits) and, in a plane of its own, its sign; no scale
    PAIR = 5  # 1 where x >= 0; decodes to the second or the first of two scales


class Norm(IntEnum):
    """How a block finds its scale."""

    MAX = 0  # largest magnitude
    L2 = 1  # Euclidean norm
    MEAN = 2  # mean magnitude
    RANGE = 3  # two numbers: smallest and largest value
    UNIT = 4  # 1 (NaN where the block holds NaN or inf)
    NONE = 5  # no scale is sent
    SIDES = 6  # two numbers: the mean of the negative elements and of the others
    CLIPPED = 7  # largest magnitude, at most `clip` standard deviations


@dataclass(frozen=True)
class Quant:
    """How one element becomes a field of `width` bits."""

    kind: Kind
    norm: Norm
    levels: int
    width: int
    stochastic: bool = True
    clip: float = 0.0  # for CLIPPED
    lo: float = 0.0  # UNSIGNED with UNIT: the ends of a fixed grid
    hi: float = 0.0

    def __post_init__(self) -> None:
        assert 1 <= self.width <= (9 if self.kind is Kind.NATURAL else 8)
        assert 1 <= self.levels <= 255

    @cached_property
    def numbers(self) -> list[float]:
        """All fields, as the C++ tier takes them."""
        return [self.kind, self.norm, self.levels, self.width, self.stochastic, self.clip, self.lo, self.hi]

    @cached_property
    def scales(self) -> int:
        """Floats sent for each block."""
        return {Norm.NONE: 0, Norm.RANGE: 2, Norm.SIDES: 2}.get(self.norm, 1)

    @property
    def signed(self) -> bool:
        """Whether codes are two's complement."""
        return self.kind in (Kind.SIGNED, Kind.DITHER)

    @property
    def fraction(self) -> int:
        """Bits behind the point in fixed-point rounding: levels + 1 still fit 31 bits."""
        return 31 - self.levels.bit_length()

    def code_bytes(self, n: int) -> int:
        """Bytes of the packed fields of `n` elements."""
        return packed_bytes(n, self.width)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which of `n` elements share a scale: blocks of `size`, or the ragged boundaries `starts`."""

    n: int
    size: int = 0
    starts: Tensor | None = None  # int64, (count + 1,), from 0 to n

    def __post_init__(self) -> None:
        assert (self.starts is None) == (self.size > 0)
        if self.starts is not None:
            assert self.starts.dtype == torch.int64
            assert self.starts.is_contiguous()

    @cached_property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.n // self.size) if self.starts is None else self.starts.numel() - 1

    @cached_property
    def index(self) -> Tensor:
        """The block of every element, for the reference tier."""
        if self.starts is None:
            return torch.arange(self.n) // self.size
        return torch.repeat_interleave(torch.arange(self.count), self.starts.diff())

    def ranges(self) -> list[tuple[int, int]]:
        """(begin, end) of every block."""
        if self.starts is None:
            return [(i, min(i + self.size, self.n)) for i in range(0, self.n, self.size)]
        edges = self.starts.tolist()
        return list(itertools.pairwise(edges))
