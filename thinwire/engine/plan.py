"""Plan: which tensors travel together, and which of them are compressed.

Parameters are taken in the order in which backward is expected to finish them, last first, and packed into buckets of
at most `bucket_mb` of the overlap, of which the first may be smaller. A bucket holds tensors of one parameter group
(they share a learning rate) and one device. Tensors below `min_size` elements, or whose name matches `exclude`, go
uncompressed in one side bucket per device; QSGD's authors, too, leave tensors below 10,000 elements uncompressed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, final

from thinwire.core.config import Config
from thinwire.core.per_tensor import PerTensor
from thinwire.core.registry import suggest
from thinwire.core.types import Layout
from thinwire.kernels.spec import TILE

if TYPE_CHECKING:
    import torch

    from thinwire.core.method import Method, Overlap
    from thinwire.exchange.inside_plan import InsidePlan

MIN_SIZE = 10_000


class Item(NamedTuple):
    """What the plan needs to know about one parameter."""

    name: str
    shape: tuple[int, ...]
    device: torch.device
    group: int = 0  # index of the optimizer's parameter group
    whole: int = 0  # elements of the tensor of which it is a shard; 0 where it is no shard

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@final
@dataclass(frozen=True)
class Parcel:
    """The tensors of one bucket."""

    items: tuple[Item, ...]
    compressed: bool
    fragment: int = 0  # which of the parts of the model that take turns

    @property
    def layout(self) -> Layout:
        """Names and shapes."""
        return Layout(tuple(item.name for item in self.items), tuple(item.shape for item in self.items))


@final
@dataclass(frozen=True)
class Plan:
    """What happens to every tensor; prints as a table."""

    parcels: tuple[Parcel, ...]
    method: str
    inside: InsidePlan | None = None  # of the shard groups, where FSDP's reduce-scatter is compressed too

    def __str__(self) -> str:
        lines = []
        width = max((len(item.name) for parcel in self.parcels for item in parcel.items), default=4)
        in_turn = any(parcel.fragment for parcel in self.parcels)
        for number, parcel in enumerate(self.parcels):
            what = self.method if parcel.compressed else "float32, side bucket"
            turn = f", fragment {parcel.fragment}" if in_turn else ""
            lines.append(f"bucket {number}: {what}, {parcel.layout.numel:,} elements{turn}")
            for item in parcel.items:
                shape = "x".join(map(str, item.shape)) or "scalar"
                lines.append(f"  {item.name:<{width}}  {shape:>16}  {item.numel:>12,}")
        return "\n".join([*lines, *(() if self.inside is None else (str(self.inside),))])


def make_plan(
    items: Sequence[Item],
    method: str,
    *,
    overlap: Overlap,
    min_size: int,
    exclude: Sequence[str],
    whole: bool = False,
    fragments: int = 1,
) -> Plan:
    """Pack `items`, given in forward order; with `whole` all in one bucket, with `fragments` each part by itself."""
    if fragments > 1:
        parts = _strided(items, method, fragments)
        plans = [make_plan(part, method, overlap=overlap, min_size=min_size, exclude=exclude) for part in parts]
        return Plan(
            tuple(replace(parcel, fragment=number) for number, plan in enumerate(plans) for parcel in plan.parcels),
            method,
        )
    if whole:
        if len({item.device for item in items}) > 1:
            raise ValueError(f"{method} exchanges the model in one piece, on one device; got several devices")
        return Plan((Parcel(tuple(reversed(items)), True),), method)
    small = [
        i
        for i in items
        if not i.numel or (i.whole or i.numel) < min_size or any(fnmatchcase(i.name, pattern) for pattern in exclude)
    ]
    aside = {item.name for item in small}
    whole_mb = 4 * sum(item.numel for item in items) / (1 << 20)
    parcels: list[Parcel] = []
    open_: list[Item] = []
    for item in reversed([i for i in items if i.name not in aside]):
        sizes = overlap.sizes(item.device.type, whole_mb)
        limit = max(1, int((sizes.bucket_mb if parcels else sizes.first_mb) * (1 << 20) / 4))
        full = sum(i.numel for i in open_) + item.numel > limit
        if open_ and (full or (item.group, item.device) != (open_[0].group, open_[0].device)):
            parcels.append(Parcel(tuple(open_), True))
            open_ = []
        open_.append(item)
    if open_:
        parcels.append(Parcel(tuple(open_), True))
    for device in dict.fromkeys(item.device for item in small):
        parcels.append(Parcel(tuple(i for i in reversed(small) if i.device == device), False))
    return Plan(tuple(parcels), method)


def plan_of(method: Method, items: Sequence[Item], min_size: int | None, exclude: Sequence[str]) -> Plan:
    """The plan that a method asks for; `min_size` is the method's own unless it is given."""
    _check_choices(items, method.exchange)
    return make_plan(
        items,
        method.id,
        overlap=method.overlap,
        min_size=smallest(method) if min_size is None else min_size,
        exclude=exclude,
        whole=method.exchange.one_piece,
        fragments=method.sync.of.parts,
    )


def _check_choices(items: Sequence[Item], part: object) -> None:
    """Refuse a compressor that is chosen for a tensor which is not there: its name is most likely misspelt."""
    if isinstance(part, PerTensor):
        names = [item.name for item in items]
        for name, _ in part.choice:
            if name not in names:
                raise ValueError(f"PerTensor chooses for {name!r}, which is no parameter{suggest(name, names)}")
    if isinstance(part, Config):
        for one in fields(part):  # type: ignore[arg-type]  # every part of a method is a dataclass
            _check_choices(items, getattr(part, one.name))


def _strided(items: Sequence[Item], method: str, fragments: int) -> list[list[Item]]:
    """Module l of the model, by the order in which they come, belongs to fragment l mod `fragments`."""
    modules = list(dict.fromkeys(item.name.rpartition(".")[0] for item in items))
    if len(modules) < fragments:
        raise ValueError(
            f"{method} cuts the model into {fragments} fragments, but only {len(modules)} modules have parameters; "
            f"write fragments={len(modules)} or fewer"
        )
    number = {module: at % fragments for at, module in enumerate(modules)}
    return [[item for item in items if number[item.name.rpartition(".")[0]] == at] for at in range(fragments)]


def chunks(numel: int, chunk_mb: float) -> list[tuple[int, int]]:
    """Where a bucket is cut into equal pieces, at multiples of 512, which are exchanged one after another.

    >>> chunks(3000, 4096 / 2**20)
    [(0, 1024), (1024, 2048), (2048, 3000)]
    """
    limit = max(TILE, int(min(chunk_mb * (1 << 20) / 4, numel)))
    count = max(1, -(-numel // limit))
    size = max(TILE, -(-numel // (count * TILE)) * TILE)
    return [(start, min(start + size, numel)) for start in range(0, max(numel, 1), size)]


def smallest(method: Method) -> int:
    """The default of `min_size`: tensors with fewer elements travel uncompressed.

    A method whose result is a vote and not a gradient must carry every tensor: the step size would mean something
    else for a tensor that travels uncompressed.
    """
    return MIN_SIZE if method.exchange.keeps_scale else 0


def check_exclude(items: Sequence[Item], exclude: Sequence[str]) -> None:
    """Refuse a pattern that matches nothing: it is most likely misspelt."""
    for pattern in exclude:
        if not any(fnmatchcase(item.name, pattern) for item in items):
            raise ValueError(
                f"exclude={pattern!r} matches no parameter{suggest(pattern, [item.name for item in items])}"
            )
