"""Shards: which server keeps which tensors of the model.

Tensors stay whole, so that optimizers which look at whole tensors do what they do elsewhere. The largest tensor goes
first, to whoever has least so far: no server has more than 4/3 of the best cut's largest shard (Graham 1969), and one
tensor that is larger than all others together is a shard of its own. A model of fewer tensors than servers leaves
some of them without a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.types import Layout

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 3  # tensors of a shard that an error names


@final
@dataclass(frozen=True)
class Shard:
    """Some tensors of the model, in its order, which `rank` serves."""

    number: int
    rank: int
    tensors: tuple[int, ...]  # which of the model
    layout: Layout
    runs: tuple[tuple[int, int], ...]  # where each lies in a vector of the whole model

    def take(self, x: Tensor) -> Tensor:
        """Its part of a vector of the whole model."""
        return torch.cat([x[start:stop] for start, stop in self.runs])

    def put(self, part: Tensor, x: Tensor) -> None:
        """Write its part into a vector of the whole model."""
        at = 0
        for start, stop in self.runs:
            x[start:stop] = part[at : at + stop - start]
            at += stop - start

    def __str__(self) -> str:
        names = self.layout.names
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"shard {self.number} ({', '.join(names[:SHOWN])}{more})"


def cut(layout: Layout, ranks: Sequence[int]) -> tuple[Shard, ...]:
    """A shard for each of these ranks, as long as there are tensors.

    >>> [shard.tensors for shard in cut(Layout(("a", "b", "c", "d"), ((5,), (9,), (3,), (2,))), (0, 1))]
    [(1,), (0, 2, 3)]
    """
    sizes = layout.sizes
    mine: list[list[int]] = [[] for _ in ranks]
    held = [0] * len(ranks)
    for tensor in sorted(range(len(sizes)), key=lambda one: (-sizes[one], one)):
        least = min(range(len(ranks)), key=lambda server: (held[server], len(mine[server]), server))
        mine[least].append(tensor)
        held[least] += sizes[tensor]
    return tuple(
        _shard(number, rank, tuple(sorted(tensors)), layout)
        for number, (rank, tensors) in enumerate(zip(ranks, mine, strict=True))
        if tensors
    )


def _shard(number: int, rank: int, tensors: tuple[int, ...], layout: Layout) -> Shard:
    names, shapes = tuple(layout.names[t] for t in tensors), tuple(layout.shapes[t] for t in tensors)
    runs = tuple((layout.offsets[t], layout.offsets[t + 1]) for t in tensors)
    return Shard(number, rank, tensors, Layout(names, shapes), runs)
