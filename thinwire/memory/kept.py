"""Kept: residuals as they lie in memory between two steps, row by row and tensor by tensor.

Inside a shard group every rank holds back a part of the whole gradient, which costs the memory that sharding saves.
So a residual may be stored in 8 bits:

    float32   4 bytes per element, exact
    int8      one byte per element and one scale per 256 of them: 1.02 bytes

An element of the second kind is rounded at random to one of the two nearest points of a grid, so that it is right on
average. Rounding to the nearest point would lose a small gradient in every step, beside a large one in its block, and
error feedback could then never send it.

Blocks end where tensors end, so that each tensor can be read, stored and saved by itself.

Reference: LoCo, Xie et al., "LoCo: low-bit communication adaptor for large-scale model training", arXiv 2407.04480,
for the residual in 8 bits.

Departs from the paper: one scale per block; rounding at random; no moving average of residuals and no resets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire import kernels
from thinwire.core.types import Layout
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, State

BLOCK = 256
GRID = Quant(Kind.SIGNED, Norm.MAX, levels=127, width=8, stochastic=True)


class Kept(ABC):
    """The residuals of `rows` vectors of one layout. A call names the tensors that it is about, in their order."""

    def __init__(self, layout: Layout, rows: int, device: torch.device) -> None:
        self.layout, self.rows, self.device = layout, rows, device
        self._make()

    @abstractmethod
    def _make(self) -> None:
        """Make the tensors, which stand for zeros."""

    @abstractmethod
    def read(self, row: int, names: Sequence[str]) -> Tensor:
        """The residuals of some tensors of a row, one after the other: float32, to be changed and written back."""

    @abstractmethod
    def write(self, row: int, names: Sequence[str], e: Tensor, key: Key) -> None:
        """Store what `read` returned, after it was changed."""

    @abstractmethod
    def parts(self, name: str) -> State:
        """What is stored of one tensor: views, which a checkpoint saves and fills."""

    @staticmethod
    @abstractmethod
    def cost(sizes: Sequence[int], rows: int) -> int:
        """Bytes that the residuals of so many rows take, each with tensors of these sizes."""

    @property
    @final
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.cost(self.layout.sizes, self.rows)

    @final
    def with_more(self, more: Mapping[str, int]) -> Kept:
        """The same with further tensors of so many elements, whose residuals are zero."""
        names = (*self.layout.names, *more)
        grown = type(self)(
            Layout(names, (*self.layout.shapes, *((n,) for n in more.values()))), self.rows, self.device
        )
        for name in self.layout.names:
            for part, t in self.parts(name).items():
                grown.parts(name)[part].copy_(t)
        return grown


@final
class Float32(Kept):
    """Exact, in four bytes per element."""

    @staticmethod
    def cost(sizes: Sequence[int], rows: int) -> int:
        """Four bytes per element."""
        return 4 * rows * sum(sizes)

    def _make(self) -> None:
        self._all = torch.zeros(self.rows, self.layout.numel, device=self.device)
        ends = pairwise(self.layout.offsets)
        self._at = {name: slice(*ends_) for name, ends_ in zip(self.layout.names, ends, strict=True)}

    def read(self, row: int, names: Sequence[str]) -> Tensor:
        """The stored numbers themselves if all tensors are asked for, otherwise copies."""
        whole = self._all[row]
        return whole if tuple(names) == self.layout.names else torch.cat([whole[self._at[name]] for name in names])

    def write(self, row: int, names: Sequence[str], e: Tensor, key: Key) -> None:
        """Copy them back where they are copies."""
        if e.data_ptr() == self._all[row].data_ptr():
            return
        places = [self._all[row, self._at[name]] for name in names]
        for place, piece in zip(places, e.split([p.numel() for p in places]), strict=True):
            place.copy_(piece)

    def parts(self, name: str) -> State:
        """Its columns."""
        return {"residual": self._all[:, self._at[name]]}


class _Place(NamedTuple):
    """Where a tensor lies in a row: its elements, and its blocks."""

    elements: slice
    blocks: slice


@final
class Int8(Kept):
    """One byte per element, and a scale per block."""

    @staticmethod
    def cost(sizes: Sequence[int], rows: int) -> int:
        """One byte per element, and four per block."""
        return rows * (GRID.code_bytes(sum(sizes)) + 4 * sum(-(-size // BLOCK) for size in sizes))

    def _make(self) -> None:
        self._blocks = _blocks(self.layout.sizes)
        self._codes = torch.zeros(
            self.rows, GRID.code_bytes(self.layout.numel), dtype=torch.uint8, device=self.device
        )
        self._scales = torch.zeros(self.rows, self._blocks.count, device=self.device)
        self._at: dict[str, _Place] = {}
        self._some: dict[tuple[str, ...], Blocks] = {}  # of tensors that occurred together, without the others
        first = 0
        for name, (start, stop) in zip(self.layout.names, pairwise(self.layout.offsets), strict=True):
            last = first + -(-(stop - start) // BLOCK)
            self._at[name] = _Place(slice(start, stop), slice(first, last))
            first = last

    def read(self, row: int, names: Sequence[str]) -> Tensor:
        """Decode them."""
        codes, scales, blocks = self._picked(row, tuple(names))
        e = torch.empty(blocks.n, device=self.device)
        if blocks.n:
            kernels.select(e).decode_add(scales, codes, GRID, blocks, e, fresh=True)
        return e

    def write(self, row: int, names: Sequence[str], e: Tensor, key: Key) -> None:
        """Encode them, with noise of this key."""
        codes, scales, blocks = self._picked(row, tuple(names))
        if not blocks.n:
            return
        kernels.select(e).encode(e, GRID, blocks, key, scales, codes)
        if tuple(names) == self.layout.names:
            return
        at = block = 0
        for elements, those in (self._at[name] for name in names):
            n, count = elements.stop - elements.start, those.stop - those.start
            self._codes[row, elements] = codes[at : at + n]
            self._scales[row, those] = scales[block : block + count]
            at, block = at + n, block + count

    def parts(self, name: str) -> State:
        """Its columns: with fields of 8 bits, codes lie in the order of the elements."""
        elements, blocks = self._at[name]
        return {"codes": self._codes[:, elements], "scales": self._scales[:, blocks]}

    def _picked(self, row: int, names: tuple[str, ...]) -> tuple[Tensor, Tensor, Blocks]:
        """Codes and scales of some tensors: where they are if all are asked for, otherwise in copies."""
        if names == self.layout.names:
            return self._codes[row], self._scales[row], self._blocks
        found = self._some.get(names)
        if found is None:
            found = self._some[names] = _blocks([_length(self._at[name].elements) for name in names])
        codes = torch.zeros(GRID.code_bytes(found.n), dtype=torch.uint8, device=self.device)
        torch.cat([self._codes[row, self._at[name].elements] for name in names], out=codes[: found.n])
        return codes, torch.cat([self._scales[row, self._at[name].blocks] for name in names]), found


def _length(where: slice) -> int:
    length: int = where.stop - where.start
    return length


def _blocks(sizes: Sequence[int]) -> Blocks:
    """Blocks of 256 elements that begin anew with every tensor."""
    full = [size for size in sizes if size]
    if full and not any(size % BLOCK for size in full[:-1]):  # the kernels' faster case, with the same bits
        return Blocks(sum(full), size=BLOCK)
    edges, start = [0], 0
    for size in sizes:
        edges += [*range(start + BLOCK, start + size, BLOCK), start + size] if size else []
        start += size
    return Blocks(start, starts=torch.tensor(edges, dtype=torch.int64))


KINDS: dict[str, type[Kept]] = {"int8": Int8, "float32": Float32}
"""By the word in `ReduceScatter(residual=...)`; "none" keeps nothing."""
