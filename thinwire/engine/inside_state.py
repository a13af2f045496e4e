"""Checkpoints of the residuals inside shard groups, by parameter.

A rank's state is one entry "rank<r>" of plain values and tensors, as that of a `Wire` is. On as many ranks as before
each takes up its own, whatever units the model is wrapped in now. On another number of ranks rows have other owners:
what all ranks held back of a parameter is put together, and every rank takes an equal share, so that the mean over
ranks stays what it was. The owner of a row holds nothing back of it, so the others take its share as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.types import Key, Layout
from thinwire.core.version import VERSION
from thinwire.engine import checkpoint
from thinwire.engine.checkpoint import OnResize
from thinwire.engine.checksums import check_checksums, sealed
from thinwire.engine.reduce_scatter import UnitReduceScatter
from thinwire.engine.units import Cut
from thinwire.exchange.reduce_scatter import ReduceScatter
from thinwire.kernels.spec import TILE
from thinwire.memory.kept import KINDS

FORMAT = 1
SPREAD = 2  # the hop of the noise with which shares are rounded
Saved: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Found: TypeAlias = list[Tensor] | Mapping[str, Tensor]  # rows of numbers, or parts as `Kept` stores them


def collect(how: ReduceScatter, seed: int, calls: Sequence[UnitReduceScatter]) -> dict[str, Any]:
    """The state of this rank. All that is no tensor is one text, so that checkpoints have few entries."""
    about: dict[str, Any] = {"inside": how.to_json(), "seed": seed, "rounds": {}, "parameters": {}}
    tensors: dict[str, Tensor] = {}
    for call in calls:
        group = call.unit.process_group
        for name, cut in call.unit.cuts().items():
            place = {"ranks": dist.get_world_size(group), "rank": dist.get_rank(group)}
            about["parameters"][name] = {"shape": [*cut.shape], "dim": cut.dim, "chunk": [*cut.chunk], **place}
            about["rounds"][name] = call.round
        if call.kept is not None:
            for name in call.kept.layout.names:
                parts = call.kept.parts(name)
                tensors |= {f"{part}|{name}": t.detach().clone() for part, t in parts.items()}
    state = sealed({"format": FORMAT, "thinwire": VERSION, "about": json.dumps(about), "tensors": tensors})
    return {f"rank{dist.get_rank()}": state}


def read(path: str, name: str) -> dict[str, Any]:
    """What a wire has saved of it with torch.distributed.checkpoint: of this rank, or of all if they were others."""
    return checkpoint.read_part(path, (name, "inside"), _needed)


def _needed(ranks: Sequence[str]) -> Sequence[str]:
    own = f"rank{dist.get_rank()}"
    return [own] if own in ranks and len(ranks) == dist.get_world_size() else ranks


class Checked(NamedTuple):
    """What `restore` goes on with."""

    first: Mapping[str, Any]
    found: list[tuple[UnitReduceScatter, str, Found]]


def checked(how: ReduceScatter, calls: Sequence[UnitReduceScatter], saved: Saved, *, on_resize: OnResize) -> Checked:
    """The residuals that this rank takes up; ValueError if they cannot be loaded here. Nothing is changed."""
    if on_resize not in get_args(OnResize):
        raise ValueError(f"on_resize={on_resize!r}: write one of {', '.join(map(repr, get_args(OnResize)))}")
    states = {rank: _parsed(how, rank, state) for rank, state in checkpoint.states_of(saved).items()}
    first = states.get(dist.get_rank(), next(iter(states.values())))
    found: list[tuple[UnitReduceScatter, str, Found]] = []
    for call in calls:
        for name, cut in call.unit.cuts().items():
            _check_shape(name, cut, first)
            if call.kept is not None and name in call.kept.layout.names:
                found.append((call, name, _found(how, call, name, states, on_resize)))
    for rank, state in checkpoint.states_of(saved).items():
        check_checksums(f"the state of rank {rank}", state)
    return Checked(first, found)


def restore(calls: Sequence[UnitReduceScatter], residuals: Checked) -> int:
    """Fill the residuals; returns the seed."""
    for call in calls:
        call.round = max((residuals.first["rounds"][name] for name in call.unit.cuts()), default=0)
    for call, name, data in residuals.found:
        _put(call, name, data)
    seed: int = residuals.first["seed"]
    return seed


def _found(
    how: ReduceScatter,
    call: UnitReduceScatter,
    name: str,
    states: Mapping[int, Mapping[str, Any]],
    on_resize: OnResize,
) -> Found:
    """What this rank goes on with."""
    me, group = dist.get_rank(), call.unit.process_group
    place = [dist.get_world_size(group), dist.get_rank(group)]
    about = (states[me] if me in states else next(iter(states.values())))["parameters"][name]
    if me in states and [about["ranks"], about["rank"]] == place:
        return _own(states[me], call, name)
    if about["ranks"] == place[0] and len(states) < place[0]:
        raise ValueError(f"rank {me} was given the state of rank {min(states)}; load this rank's own file")
    if on_resize == "error":
        raise ValueError(f'saved on {about["ranks"]} ranks, loaded on {place[0]}; write on_resize="mean" or "reset"')
    return [] if on_resize == "reset" else _shares(how, call, name, states)


def _parsed(how: ReduceScatter, rank: int, state: Any) -> Mapping[str, Any]:
    """The entries of a rank's state, if it can be loaded here."""
    if not isinstance(state, Mapping) or state.get("format") != FORMAT or not isinstance(state.get("about"), str):
        raise ValueError(f"the state of rank {rank} is not one of a compressed reduce-scatter, of format {FORMAT}")
    about = {**json.loads(state["about"]), "tensors": state.get("tensors")}
    for entry, kind in (("seed", int), ("rounds", Mapping), ("parameters", Mapping), ("tensors", Mapping)):
        if not isinstance(about.get(entry), kind):
            raise ValueError(f"the state of rank {rank} has no '{entry}'; it is damaged")
    if about.get("inside") != how.to_json():
        before = ReduceScatter.from_json(about["inside"])
        raise ValueError(
            f"the state was saved with inside={before.id}, and this is inside={how.id}; write the former"
        )
    return about


def _check_shape(name: str, cut: Cut, state: Mapping[str, Any]) -> None:
    before = state["parameters"].get(name)
    if before is None or before["shape"] != [*cut.shape]:
        had = "is missing" if before is None else f"has shape {before['shape']}"
        raise ValueError(
            f"the state was saved from another model: {name} has shape {[*cut.shape]} here and {had} there"
        )


def _own(state: Mapping[str, Any], call: UnitReduceScatter, name: str) -> Mapping[str, Tensor]:
    """What this rank saved of a parameter, if it fits."""
    assert call.kept is not None
    out = {}
    for part, room in call.kept.parts(name).items():
        data = state["tensors"].get(f"{part}|{name}")
        if data is None:  # it was frozen then
            return {}
        if not isinstance(data, Tensor) or data.shape != room.shape or data.dtype != room.dtype:
            raise ValueError(
                f"the state has '{part}|{name}' of {type(data).__name__} {str(data)[:60]}; it is damaged: "
                f"expected {room.dtype} of shape {tuple(room.shape)}"
            )
        if data.is_floating_point() and not bool(data.isfinite().all()):
            raise ValueError(f"the state has '{part}|{name}' with elements that are not finite")
        out[part] = data
    return out


def _shares(
    how: ReduceScatter, call: UnitReduceScatter, name: str, states: Mapping[int, Mapping[str, Any]]
) -> list[Tensor]:
    """The share of this rank, for every owner but itself."""
    group = call.unit.process_group
    ranks, me = dist.get_world_size(group), dist.get_rank(group)
    places = [state["parameters"][name]["rank"] for state in states.values()]
    before: int = next(iter(states.values()))["parameters"][name]["ranks"]
    if sorted(places) != sorted([*range(before)] * (len(states) // before)):
        raise ValueError(
            f"saved on {before} ranks, loaded on {ranks}: their shares need all states; "
            "write load_state_dict([torch.load(f, weights_only=True) for f in files])"
        )
    mean = torch.stack([_whole(how, name, state) for state in states.values()]).mean(0)
    rows = call.unit.cuts()[name].rows(mean * (ranks / (ranks - 1)), ranks)
    return [row for owner, row in enumerate(rows) if owner != me]


def _whole(how: ReduceScatter, name: str, state: Mapping[str, Any]) -> Tensor:
    """What one rank held back of a parameter: zeros in its own row."""
    about = state["parameters"][name]
    cut = Cut(tuple(about["shape"]), about["dim"], tuple(about["chunk"]))
    n = torch.Size(cut.chunk).numel()
    kept = KINDS[how.residual](Layout((name,), ((n,),)), about["ranks"] - 1, torch.device("cpu"))
    for part, room in kept.parts(name).items():
        if f"{part}|{name}" in state["tensors"]:
            room.copy_(state["tensors"][f"{part}|{name}"])
    rows = [kept.read(row, (name,)) for row in range(kept.rows)]
    rows.insert(about["rank"], torch.zeros(n))
    return cut.joined(rows)


def _put(call: UnitReduceScatter, name: str, data: Found) -> None:
    """Store parts as they were saved, or rows of numbers; what is not there is zero."""
    assert call.kept is not None
    parts = call.kept.parts(name)
    for part, room in parts.items():
        if isinstance(data, Mapping) and part in data:
            room.copy_(data[part])
        else:
            room.zero_()
    for row, e in enumerate(data if isinstance(data, list) else ()):
        key = Key(call.seed, call.round, dist.get_rank(), call.index, SPREAD, row * -(-e.numel() // TILE) * TILE)
        call.kept.write(row, (name,), e.to(call.kept.device), key)
