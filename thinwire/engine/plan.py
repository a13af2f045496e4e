"""Plan: which tensors travel together, and which of them are compressed.

Parameters are taken in the order in which backward is expected to finish them, last first, and packed into buckets of
at most `bucket_mb` of the overlap, of which the first may be smaller. A bucket holds tensors of one parameter group
(they share a learning rate) and one device. The tensors that `aside` names go uncompressed in one side bucket per
device:

- those whose names match `exclude`;
- with `min_size`, those of fewer elements;
- without it, vectors (gains and biases) of fewer than 10,000 elements;
- and matrices of fewer than 10,000, unless all of these have as many together and would add a twentieth or more to
  the bytes: then they are packed and compressed like any other tensor, as blocks run across tensors. One of which
  the method would send more than half (which PowerSGD cannot shrink, say) stays in float32.

QSGD's authors, too, leave tensors below 10,000 elements uncompressed, and DGC's leave vectors. But a model may
consist of small matrices alone, such as those of LoRA. Where they add little, as in a ResNet, compressing them would
only let the last bucket wait for the gradient of the first layer.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Collection, Sequence, Set
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

    from thinwire.core.exchange import Exchange
    from thinwire.core.method import Method, Overlap
    from thinwire.exchange.inside_plan import InsidePlan

log = logging.getLogger("thinwire")
MIN_SIZE = 10_000
ADDED = 0.05  # of the bytes of all other tensors, which small matrices must add to be compressed
ENOUGH = 0.5  # of the bytes; where less travels compressed, users are warned


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

    @property
    def form(self) -> tuple[int, ...]:
        """The shape of the whole tensor, of which it has some rows."""
        row = math.prod(self.shape[1:])
        return (self.whole // row, *self.shape[1:]) if self.whole and row else self.shape

    @property
    def in_all(self) -> int:
        """The number of elements of the whole tensor."""
        return self.whole or self.numel

    @property
    def is_vector(self) -> bool:
        """Whether the whole tensor has one dimension, besides those of size 1."""
        return self.in_all <= max(self.form, default=1)


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
    shrinks: bool = True  # whether the method compresses at all

    @property
    def share(self) -> float:
        """How much of what is exchanged travels compressed, of its bytes in float32."""
        sizes = [(parcel.layout.numel, parcel.compressed) for parcel in self.parcels]
        total = sum(numel for numel, _ in sizes)
        return sum(numel for numel, compressed in sizes if compressed) / total if total and self.shrinks else 0.0

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
        if self.shrinks:
            lines.append(f"{self.share:.1%} of the bytes travel compressed")
        return "\n".join([*lines, *(() if self.inside is None else (str(self.inside),))])


def make_plan(
    items: Sequence[Item],
    method: str,
    *,
    overlap: Overlap,
    aside: Collection[str] = (),
    packed: Set[str] = frozenset(),
    whole: bool = False,
    fragments: int = 1,
) -> Plan:
    """Bucket `items`, given in forward order; with `whole` all in one bucket, with `fragments` each part by itself.

    The tensors named in `aside` travel uncompressed. Those in `packed` are small, and share buckets of 10,000
    elements or more even where `overlap` gives each tensor a bucket of its own.
    """
    if fragments > 1:
        parts = _strided(items, method, fragments)
        plans = [make_plan(part, method, overlap=overlap, aside=aside, packed=packed) for part in parts]
        return Plan(
            tuple(replace(parcel, fragment=number) for number, plan in enumerate(plans) for parcel in plan.parcels),
            method,
        )
    if whole:
        if len({item.device for item in items}) > 1:
            raise ValueError(f"{method} exchanges the model in one piece, on one device; got several devices")
        return Plan((Parcel(tuple(reversed(items)), True),), method)
    whole_mb = 4 * sum(item.numel for item in items) / (1 << 20)
    parcels: list[Parcel] = []
    open_: list[Item] = []
    filled = 0
    for item in reversed([i for i in items if i.name not in aside]):
        sizes = overlap.sizes(item.device.type, whole_mb)
        limit = max(1, int((sizes.bucket_mb if parcels else sizes.first_mb) * (1 << 20) / 4))
        joins = filled < MIN_SIZE and bool(open_) and {item.name, open_[-1].name} <= packed
        full = filled + item.numel > limit and not joins
        if open_ and (full or (item.group, item.device) != (open_[0].group, open_[0].device)):
            parcels.append(Parcel(tuple(open_), True))
            open_, filled = [], 0
        open_.append(item)
        filled += item.numel
    if open_:
        parcels.append(Parcel(tuple(open_), True))
    small = [item for item in items if item.name in aside]
    for device in dict.fromkeys(item.device for item in small):
        parcels.append(Parcel(tuple(i for i in reversed(small) if i.device == device), False))
    return Plan(tuple(parcels), method)


def plan_of(method: Method, items: Sequence[Item], min_size: int | None, exclude: Sequence[str]) -> Plan:
    """The plan that a method asks for; without a `min_size`, what small tensors add to the bytes decides."""
    _check_choices(items, method.exchange)
    chosen = choose(method.exchange, items, min_size, exclude)
    plan = make_plan(
        items,
        method.id,
        overlap=method.overlap,
        aside=chosen.aside,
        packed=chosen.packed,
        whole=method.exchange.one_piece,
        fragments=method.sync.of.parts,
    )
    return replace(plan, shrinks=method.exchange.compresses)


class Choice(NamedTuple):
    """Names of the tensors that travel uncompressed, and of small ones that are compressed together."""

    aside: frozenset[str]
    packed: frozenset[str]


def choose(exchange: Exchange, items: Sequence[Item], min_size: int | None, exclude: Sequence[str]) -> Choice:
    """Which tensors travel uncompressed.

    A method whose result is a vote and not a gradient must carry every tensor: the step size would mean something
    else for a tensor that travels uncompressed.

    The ranks that hold the shards of one tensor come to one decision, but for those that hold nothing of it.
    """
    least = min_size
    if least is None:
        least = MIN_SIZE if exchange.keeps_scale else 0
    excluded = {item.name for item in items if any(fnmatchcase(item.name, pattern) for pattern in exclude)}
    small = [item for item in items if item.in_all < least and item.name not in excluded]
    exact = frozenset(excluded | {item.name for item in small})
    packed = _packed(exchange, items, small, exact) if min_size is None else frozenset()
    empty = {item.name for item in items if not item.numel}
    return Choice(exact - packed | empty, packed - empty)


def _packed(
    exchange: Exchange, items: Sequence[Item], small: Sequence[Item], exact: frozenset[str]
) -> frozenset[str]:
    """The small matrices, if they are many and would add much to the bytes in float32, as those in `exact` do."""
    forms = {item.form for item in small if not item.is_vector}
    lazy = any(channel.memory.skips for channel in exchange.channels)  # then whole rounds may be spared
    worth = {form for form in forms if lazy or exchange.halves(form)}
    matrices = [item for item in small if item.form in worth]
    names = frozenset(item.name for item in matrices)
    others = [item for item in items if item.name not in names]
    large = [item for item in others if item.name not in exact]
    layout = Layout(tuple(item.name for item in large), tuple(item.form for item in large))
    sent = 4 * sum(item.in_all for item in others if item.name in exact)
    sent += min(channel.encoder.nbytes(layout) for channel in exchange.channels)
    numel = sum(item.in_all for item in matrices)
    return names if numel >= MIN_SIZE and 4 * numel >= ADDED * sent else frozenset()


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


def announce(plan: Plan, min_size: int | None, exclude: Sequence[str]) -> None:
    """Say what share of the bytes travels compressed, and warn where it is less than half."""
    if not plan.shrinks:
        return
    exact = [item for parcel in plan.parcels if not parcel.compressed for item in parcel.items if item.numel]
    line = f"{plan.method}: {plan.share:.1%} of the bytes travel compressed"
    if exact:
        largest = max(exact, key=lambda item: item.numel)
        line += f"; {len(exact)} tensors travel in float32, of which {largest.name} is the largest"
    if plan.share >= ENOUGH:
        log.info("%s", line)
        return
    instead = [*(["write min_size=0"] if min_size != 0 else []), *(["leave out exclude="] if exclude else [])]
    warnings.warn(
        f"{line}. The ratio to float32 is at most {1 / (1 - plan.share):.1f}; to compress every tensor, "
        f"{' and '.join(instead)}. print(wire.plan()) lists them",
        stacklevel=_outside(),
    )


def _outside() -> int:
    """The level, for the caller, of the first frame that is not thinwire's own."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == __name__.split(".")[0]:
        level, frame = level + 1, frame.f_back
    return level


def check_exclude(items: Sequence[Item], exclude: Sequence[str]) -> None:
    """Refuse a pattern that matches nothing: it is most likely misspelt."""
    for pattern in exclude:
        if not any(fnmatchcase(item.name, pattern) for item in items):
            raise ValueError(
                f"exclude={pattern!r} matches no parameter{suggest(pattern, [item.name for item in items])}"
            )
