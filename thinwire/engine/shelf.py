"""Shelf: what a served method keeps in a checkpoint, and how it is taken up again.

    worker    its model, the version of every shard in it, its clock, and the memories of both ways
    server    its shard of the model, the optimizer's moments, versions, clocks, and what its rule remembers

A rank's state has an entry "served" with its worker, its server, or both. On as many ranks, each takes up its own.
On another number the shards are cut anew: every server finds its tensors and their moments in the states of those
that had them, and every worker starts from that model. Residuals of the way up become their mean over the workers,
unless they are to be forgotten; what the way down had not sent yet is in the model, which all start with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thinwire.core.slots import Slots

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Layout, State
    from thinwire.server.shards import Shard

ENTRY = "served"
States = Mapping[int, Mapping[str, Any]]  # by rank


class Whole(NamedTuple):
    """What the servers had, put together."""

    x: dict[str, Tensor]
    optimizer: dict[str, Any]
    version: int
    clock: int


def checked(states: States, layout: Layout) -> None:
    """Refuse states in which something is missing."""
    for rank, state in states.items():
        entry = state.get(ENTRY)
        if not isinstance(entry, Mapping) or not {"worker", "server"} <= set(entry):
            raise ValueError(f"the state of rank {rank} has no entry '{ENTRY}' with a worker and a server")
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        for name, x in (entry["server"] or {"x": {}})["x"].items():
            if shapes.get(name) != tuple(x.shape) or not bool(x.isfinite().all()):
                raise ValueError(f"the state of rank {rank} has '{name}' of {tuple(x.shape)}; it is damaged")


def put_together(states: States, layout: Layout) -> Whole:
    """The model that the servers had, in the newest of their versions."""
    servers = [one for state in states.values() if (one := state[ENTRY]["server"]) is not None]
    x = {name: t for one in servers for name, t in one["x"].items()}
    lacking = [name for name in layout.names if name not in x]
    if lacking:
        raise ValueError(
            f"on another number of ranks all states are needed: no server among them has {lacking[0]}; "
            "write wire.load_state_dict([torch.load(f) for f in files])"
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
