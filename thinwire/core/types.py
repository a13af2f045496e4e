"""Key, Layout, State, Context: what encoders and exchanges are told about the tensor that they work on."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from thinwire.core.clock import Clock
from thinwire.core.payload import Payload
from thinwire.kernels.key import Key

if TYPE_CHECKING:
    from thinwire.core.comm import Comm
    from thinwire.core.verdicts import Verdicts

__all__ = ["Context", "Key", "Layout", "State"]

State: TypeAlias = dict[str, Tensor]
"""Tensors that a memory or an exchange keeps between steps: made by `init`, changed in place, owned by the engine."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors inside one flat vector, in order.

    >>> layout = Layout(("weight", "bias"), ((3, 2), (3,)))
    >>> layout.numel, layout.offsets
    (9, (0, 6, 9))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.shapes):
            raise ValueError(
                f"Layout needs a shape for each name; got {len(self.names)} names, {len(self.shapes)} shapes"
            )

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]]) -> Layout:
        """The layout of named tensors, such as `model.named_parameters()`."""
        pairs = [(name, tuple(t.shape)) for name, t in tensors]
        return cls(tuple(n for n, _ in pairs), tuple(s for _, s in pairs))

    @classmethod
    def flat(cls, n: int) -> Layout:
        """One vector of `n` elements."""
        return cls(("",), ((n,),))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Kept, since layouts are long and looked up at every step; of bytes, since it may go to another process."""
        return zlib.crc32(repr((self.names, self.shapes)).encode())

    @cached_property
    def digest(self) -> int:
        """32 bits that differ between layouts of different shapes."""
        return zlib.crc32(repr(self.shapes).encode())

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(math.prod(s) for s in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each tensor starts, and the end."""
        out = [0]
        for size in self.sizes:
            out.append(out[-1] + size)
        return tuple(out)

    @cached_property
    def numel(self) -> int:
        """Elements in all."""
        return self.offsets[-1]

    @cached_property
    def tensor_starts(self) -> Tensor:
        """Boundaries of the tensors that hold elements, int64."""
        return torch.tensor(sorted(set(self.offsets)), dtype=torch.int64)

    @cached_property
    def column_starts(self) -> Tensor:
        """Boundaries of the columns: the weights into one output unit; a vector is one column."""
        edges = {0}
        for start, size, shape in zip(self.offsets, self.sizes, self.shapes, strict=False):
            if size:
                width = size // shape[0] if len(shape) > 1 else size
                edges.update(range(start, start + size + 1, width))
        return torch.tensor(sorted(edges), dtype=torch.int64)

    def cut(self, start: int, stop: int) -> Layout:
        """The layout of elements `start` to `stop`. The whole rows of a matrix that is cut stay rows.

        >>> Layout(("w", "b"), ((4, 3), (2,))).cut(2, 13)
        Layout(names=('w', 'w', 'b'), shapes=((1,), (3, 3), (1,)))
        """
        names, shapes = [], []
        for name, shape, low, high in zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False):
            for piece in _pieces(shape, max(start, low) - low, min(stop, high) - low):
                names.append(name)
                shapes.append(piece)
        return Layout(tuple(names), tuple(shapes))


def _pieces(shape: tuple[int, ...], start: int, stop: int) -> list[tuple[int, ...]]:
    """The shapes of elements `start` to `stop` of one tensor: the rest of a row, whole rows, the start of a row."""
    size = math.prod(shape)
    if stop <= start:
        return []
    if (start, stop) == (0, size):
        return [shape]
    if len(shape) < 2:
        return [(stop - start,)]
    row = size // shape[0]
    first, last = -(-start // row), stop // row  # whole rows
    if first >= last:
        return [(stop - start,)]
    head, tail = first * row - start, stop - last * row
    return [piece for piece in ((head,), (last - first, *shape[1:]), (tail,)) if piece[0]]


@dataclass(frozen=True)
class Context:
    """What an exchange knows about the step it runs in."""

    comm: Comm
    layout: Layout
    key: Key
    clock: Clock = field(default_factory=Clock)
    lr: float = 1.0
    before: Tensor | None = None
    """The model before the local step, where models are exchanged."""
    motion: tuple[float, ...] = ()
    """The last parameter steps, newest first, for memories that ask: each the mean square over all elements of
    step / lr. Multiplied by the elements of a vector it is the vector's share of the squared length."""
    verdicts: Verdicts | None = None
    """Where checks of payloads on a GPU leave their outcome; without it they are waited for."""

    def payload(self, data: Tensor, *, exact: bool = True) -> Payload:
        """A message that has arrived, or that was sent; one that is not `exact` may be followed by anything."""
        head = None if data.is_cpu else self.comm.heads.get(data)
        return Payload(data, head, self.verdicts) if exact else Payload.at_start(data, head, self.verdicts)

    def sent(self, payload: Payload) -> Payload:
        """A payload made here, whose header need not be read back from a GPU."""
        if payload.head is not None:
            self.comm.heads[payload.data] = payload.head
        return payload if self.verdicts is None else replace(payload, later=self.verdicts)
