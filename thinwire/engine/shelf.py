"""Shelf: what a served method keeps in a checkpoint, and how it is taken up again.

    worker    its model, the version of every shard in it, its clock, and the memories of both ways
    server    its shard of the model, the optimizer's moments, versions, clocks, and what its rule remembers

A rank's state has an entry "served" with its worker, its server, or both. On as many ranks, each takes up its own.
On another number the shards are cut anew: every server finds its tensors and their moments in the states of those
that had them, and every worker starts from that model. Residuals of the way up become their mean over the workers,
unless they are to be forgotten; what the way down had not sent yet is in the model, which all start with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thinwire.core.slots import Slots
from thinwire.engine.checksums import digest
from thinwire.engine.damage import check_counts, check_like, check_moments
from thinwire.server.plain import plain, restored

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Layout, State
    from thinwire.server.book import Book
    from thinwire.server.shards import Shard

ENTRY = "served"
States = Mapping[int, Mapping[str, Any]]  # by rank
WORKER = ("model", "names", "sizes", "memory", "half", "local", "down", "versions", "clock", "share")
SERVER = ("x", "optimizer", "version", "clocks", "counts", "staleness", "backup", "rule", "down")


class Whole(NamedTuple):
    """What the servers had, put together."""

    x: dict[str, Tensor]
    optimizer: dict[str, Any]
    version: int
    clock: int


def check(who: str, state: Mapping[str, Any], layout: Layout) -> None:
    """Refuse a state in which something is missing or damaged that any number of ranks asks for."""
    entry = state.get(ENTRY)
    if not isinstance(entry, Mapping) or not {"worker", "server"} <= set(entry):
        raise ValueError(f"{who} has no entry '{ENTRY}' with a worker and a server")
    like = {name: torch.empty(shape, device="meta") for name, shape in zip(layout.names, layout.shapes, strict=True)}
    server, worker = entry["server"], entry["worker"]
    if server is not None:
        _has(who, "server", server, SERVER)
        check_like(who, "served.server.x", server["x"], {name: like.get(name) for name in server["x"]})
        check_counts(who, "served.server.version", server["version"])
        if not isinstance(server["optimizer"], Mapping) or {*server["optimizer"]} != {*server["x"]}:
            raise ValueError(f"{who} has 'served.server.optimizer' of other tensors than 'served.server.x'")
    if worker is not None:
        _has(who, "worker", worker, WORKER)
        check_like(who, "served.worker.model", worker["model"], {name: x.flatten() for name, x in like.items()})
        check_counts(who, "served.worker.clock", worker["clock"])
        names, sizes, memory = worker["names"], worker["sizes"], worker["memory"]
        if not all(isinstance(one, list | tuple) for one in (names, sizes, memory)) or (
            sorted(name for some in names for name in some) != sorted(like)
            or [[like[name].numel() for name in some] for some in names] != [list(some) for some in sizes]
            or len(memory) != len(names)
        ):
            raise ValueError(f"{who} has 'served.worker' whose shards are not those of the model; it is damaged")


def check_own(who: str, entry: Mapping[str, Any], worker: Mapping[str, Any] | None, book: Book | None) -> None:
    """Refuse what has another form than what this rank's worker and its server keep now."""
    for half, kept in (("worker", worker), ("server", book)):
        if (entry[half] is None) != (kept is None):
            raise ValueError(
                f"{who} has {'no' if entry[half] is None else 'a'} 'served.{half}'; it is another rank's"
            )
    if worker is not None:
        check_like(who, "served.worker", entry["worker"], worker)
        same = entry["worker"]["names"] == worker["names"]
        if not same or entry["worker"]["local"] < 0 or entry["worker"]["share"] <= 0 or min(worker["versions"]) < 0:
            raise ValueError(f"{who} has 'served.worker' with other names, or numbers below 0; it is damaged")
    if book is not None:
        saved, like = entry["server"], book.save()
        for name in ("x", "version", "clocks", "counts", "backup", "down"):
            check_like(who, f"served.server.{name}", saved[name], like[name])
        for name in ("clocks", "counts"):
            check_counts(who, f"served.server.{name}", saved[name])
        check_like(who, "served.server.staleness", saved["staleness"], [[0, 0] for _ in saved["staleness"]])
        check_moments(who, "served.server.optimizer", saved["optimizer"], book.moments_of)
        _check_rule(who, saved["rule"], book)


def _check_rule(who: str, saved: Any, book: Book) -> None:
    """What a rule remembers varies, so it is read once for trial, and must be what it would be saved as."""
    try:
        again = plain(restored(saved, book.rule.init(book.workers)))
    except Exception as error:
        raise ValueError(f"{who} has 'served.server.rule' that cannot be read ({error!r}); it is damaged") from error
    form = plain(book.state)
    if digest(again) != digest(saved) or not _finite(saved) or _outline(saved) != _outline(form):
        raise ValueError(f"{who} has 'served.server.rule' that its rule has not saved; it is damaged")


def _outline(value: Any) -> Any:
    """The fields of what a rule remembers."""
    return [name for name, _ in value[1:]] if value[0] == "fields" else value[0] in ("list", "dict", "set")


def _finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _has(who: str, half: str, entry: Any, names: Sequence[str]) -> None:
    lacking = [name for name in names if not isinstance(entry, Mapping) or name not in entry]
    if lacking:
        raise ValueError(f"{who} has no 'served.{half}.{lacking[0]}'; it is damaged")


def put_together(states: States, layout: Layout) -> Whole:
    """The model that the servers had, in the newest of their versions."""
    servers = [one for state in states.values() if (one := state[ENTRY]["server"]) is not None]
    x = {name: t for one in servers for name, t in one["x"].items()}
    lacking = [name for name in layout.names if name not in x]
    if lacking:
        raise ValueError(
            f"on another number of ranks all states are needed: no server among them has {lacking[0]}; "
            "write wire.load_state_dict([torch.load(f, weights_only=True) for f in files])"
        )
    optimizer = {name: one["optimizer"][name] for one in servers for name in one["x"]}
    clock = max((state[ENTRY]["worker"]["clock"] for state in workers(states)), default=0)
    return Whole(x, optimizer, max(one["version"] for one in servers), clock)


def workers(states: States) -> list[Mapping[str, Any]]:
    """The states of ranks that trained."""
    return [state for state in states.values() if state[ENTRY]["worker"] is not None]


def mean_memory(states: States, shard: Shard, slots: Slots, memory: State) -> None:
    """Fill the memory of a shard with the mean over workers, by tensor; what is not per element starts anew."""
    for slot in (name for name, slot in slots.items() if slot.per == "element"):
        held = [_by_tensor(state[ENTRY]["worker"], slot) for state in workers(states)]
        memory[slot].copy_(
            torch.cat([torch.stack([one[name] for one in held]).mean(0) for name in shard.layout.names])
        )


def _by_tensor(worker: Mapping[str, Any], slot: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for names, sizes, memory in zip(worker["names"], worker["sizes"], worker["memory"], strict=True):
        found |= dict(zip(names, memory[slot].split(sizes), strict=True))
    return found


def vector(x: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Tensors by name as one vector."""
    return torch.cat([x[name].flatten() for name in names])
