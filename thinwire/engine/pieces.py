"""Pieces: the states of the chunks, cut at parameters, which is how a checkpoint stores them and another plan asks.

A piece is a run of elements of one parameter in one entry of a state. Its key in a checkpoint says the entry, where
in the parameter it starts, and the parameter:

    up.send.residual|0|conv.weight     one number per element
    send.weight|0:600|conv.weight      one number for elements 0 to 600, whether kept per tensor or per rank

So a state that is one number for a whole vector survives another plan too: it is stored with each of its parameters,
and the vector that a parameter is put first into takes it up. In reading the two forms mean the same, and one may
take the place of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from thinwire.core.slots import Slot

if TYPE_CHECKING:
    from thinwire.core.comm import Comm
    from thinwire.engine.bucket import Bucket, Chunk

Where = tuple[str, str]  # entry of the state, parameter
Held = dict[Where, list[tuple[int, Tensor]]]  # where each piece starts inside the parameter
MODEL = Slot()  # of what the engine itself keeps like a buffer


class Piece(NamedTuple):
    """Elements `start` to `stop` of one parameter inside one entry of a state; `data` is a view of it."""

    where: Where
    start: int
    stop: int
    data: Tensor  # one number per element, or one for all
    slot: Slot
    leads: bool = True  # it is the first piece of its numbers, and so the one that is asked for
    model: bool = False  # it is a model, which `reset` keeps, and no memory

    @property
    def key(self) -> str:
        """Its name in a checkpoint."""
        run = f"{self.start}" if self.slot.per == "element" else f"{self.start}:{self.stop}"
        return f"{self.where[0]}|{run}|{self.where[1]}"


class Key(NamedTuple):
    """The parts of a piece's name; `stop` is None where it follows from the data."""

    memory: str
    start: int
    stop: int | None
    name: str


def read_key(text: str) -> Key | None:
    """The parts of a name, or None where it is no such name.

    >>> read_key("send.weight|0:600|conv.weight")
    Key(memory='send.weight', start=0, stop=600, name='conv.weight')
    """
    memory, run, name = [*text.split("|", 2), "", ""][:3]
    start, colon, stop = run.partition(":")
    if not start.isdecimal() or (colon and not stop.isdecimal()):
        return None
    return Key(memory, int(start), int(stop) if colon else None, name)


def pieces(comm: Comm, buckets: Sequence[Bucket]) -> Iterator[Piece]:
    """Every entry of every state, cut at parameters."""
    for bucket in buckets:
        for chunk in bucket.chunks:
            for memory, slot in bucket.exchange.slots(chunk.layout, comm).items():
                yield from _of_entry(comm, bucket, chunk, memory, slot)
        for name, tensor in bucket.extra.items():
            for item, at, size in zip(bucket.items, bucket.layout.offsets, bucket.layout.sizes, strict=False):
                if size:
                    yield Piece((name, item.name), 0, size, tensor[at : at + size], MODEL, model=True)


def _of_entry(comm: Comm, bucket: Bucket, chunk: Chunk, memory: str, slot: Slot) -> Iterator[Piece]:
    low, high = (chunk.start + at for at in bucket.exchange.span(memory, chunk.layout, comm))
    numbers = chunk.state[memory].view(-1)
    if slot.per == "element":
        edges = [(low, high)]
    else:
        ends = [low + at for at in slot.edges(bucket.exchange.cover(memory, chunk.layout, comm))]
        edges = list(pairwise(ends))
    for number, (begin, end) in enumerate(edges):
        leads = True
        for item, at, size in zip(bucket.items, bucket.layout.offsets, bucket.layout.sizes, strict=False):
            start, stop = max(begin, at), min(end, at + size)
            if start < stop:
                each = slot.per == "element"
                data = numbers[start - low : stop - low] if each else numbers[number : number + 1]
                yield Piece((memory, item.name), start - at, stop - at, data, slot, leads=each or leads)
                leads = False


def stored(found: Iterator[Piece]) -> dict[str, Tensor]:
    """Copies of the pieces by name, with adjacent runs of elements joined."""
    out: dict[str, Tensor] = {}
    runs: dict[Where, list[Piece]] = {}
    for piece in found:
        if piece.slot.per == "element":
            runs.setdefault(piece.where, []).append(piece)
        else:
            out[piece.key] = piece.data.clone()
    for parts in runs.values():
        joined: list[list[Piece]] = []
        for piece in sorted(parts, key=lambda part: part.start):
            if joined and joined[-1][-1].stop == piece.start:
                joined[-1].append(piece)
            else:
                joined.append([piece])
        out |= {run[0].key: torch.cat([piece.data for piece in run]) for run in joined}
    return out


def held(tensors: Mapping[str, Tensor]) -> Held:
    """What a checkpoint holds, by entry and parameter, one number per element: one number for all is not copied."""
    out: Held = {}
    for text, data in tensors.items():
        key = read_key(text)
        assert key is not None  # it was checked
        run = data if key.stop is None else data.expand(key.stop - key.start)
        out.setdefault((key.memory, key.name), []).append((key.start, run))
    return out


def covered(own: Held, wanted: Piece) -> bool:
    """Whether all that is asked for is there."""
    stop = wanted.start + wanted.data.numel()
    runs = own.get(wanted.where, [])
    found = sum(max(0, min(stop, start + d.numel()) - max(wanted.start, start)) for start, d in runs)
    return found == wanted.data.numel()


def assembled(sources: Sequence[Held], wanted: Piece, *, shares: int = 0) -> Tensor:
    """The numbers that are asked for: the mean over the ranks that hold them, or, with `shares`, one of their sum.

    What is replicated is taken from the first rank that holds it. Of one number for many elements, that of the first
    counts.
    """
    count = wanted.data.numel()
    total = torch.zeros(count, dtype=torch.float64)
    holders = torch.zeros(count, dtype=torch.int64)
    stop = wanted.start + count
    for source in sources:
        for start, data in source.get(wanted.where, []):
            low, high = max(start, wanted.start), min(start + data.numel(), stop)
            if low < high:
                here, there = slice(low - wanted.start, high - wanted.start), slice(low - start, high - start)
                take = (holders[here] == 0) if wanted.slot.replicated else torch.ones(high - low, dtype=torch.bool)
                total[here] += torch.where(take, data[there].cpu().double(), 0.0)
                holders[here] += take
    if not bool((holders > 0).all()):
        memory, name = wanted.where
        raise ValueError(
            f"the state does not hold '{memory}' for every element of {name}; it was saved from another model"
        )
    return total / (shares or holders)
