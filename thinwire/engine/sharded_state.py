"""The state of one shard as part of its replica's: DTensors that are cut as the parameters are.

    replica<r>.tensors.<memory>|<parameter>    what a memory, an anchor or a model holds for each element
    replica<r>.held.<memory>|<parameter>       1 where it is held: a rank may keep only the elements that it owns
    replica<r>.outer.<moment>|<parameter>      moments of the outer optimizer
    replica<r>.numbers.<moment>|<parameter>    those that are not shaped like their parameter
    replica<r>.plain                           everything else, as JSON

torch.distributed.checkpoint stores such a state once per replica, and reads it into other shards. A rank makes of it
the state that `engine/checkpoint.py` knows, in which its own shards are all there is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thinwire.engine.local import is_sharded, like, local
from thinwire.engine.pieces import held

if TYPE_CHECKING:
    from thinwire.engine.parameters import Trained

READ = "write wire.load_state_dict(wire.read(path))"
SECTIONS = ("tensors", "held", "outer", "numbers")
Gather = Callable[[Any], list[Any]]


def to_replica(state: Mapping[str, Any], members: Mapping[str, Trained], gather: Gather) -> dict[str, Any]:
    """The replica's form of the state of one rank; `gather` asks the ranks that hold the other shards."""
    runs = {f"{memory}|{name}": found for (memory, name), found in held(state["tensors"]).items()}
    outer: dict[str, Tensor] = {}
    numbers: dict[str, Tensor] = {}
    words: dict[str, dict[str, Any]] | None = {} if "outer" in state else None
    for name, kept in state.get("outer", {}).items():
        for moment, value in kept.items():
            if not isinstance(value, Tensor):
                assert words is not None
                words.setdefault(name, {})[moment] = value
            elif tuple(value.shape) == members[name].item.shape:
                outer[f"{moment}|{name}"] = like(members[name].parameter, value)
            else:
                numbers[f"{moment}|{name}"] = value
    plain = {key: value for key, value in state.items() if key not in ("tensors", "parameters", "outer")}
    mine = {
        "plain": json.dumps({**plain, "words": words}),
        "runs": {key: _described(key, found, members) for key, found in runs.items()},
    }
    said = gather(mine)
    tensors: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for key in sorted({key for one in said for key in one["runs"]}):
        one = members[_name(key)]
        dtype = getattr(torch, next(other["runs"][key][0] for other in said if key in other["runs"]))
        data, mask = _joined(runs.get(key, []), one, dtype)
        tensors[key] = like(one.parameter, data)
        if not all(key in other["runs"] and other["runs"][key][1] for other in said if other["runs"]):
            masks[key] = like(one.parameter, mask)
    made = {"tensors": tensors, "held": masks, "outer": outer, "numbers": numbers}
    about = {
        "shards": [json.loads(other["plain"]) for other in said],
        "parameters": {name: list(one.parameter.shape) for name, one in members.items()},
        "keys": {section: sorted(found) for section, found in made.items()},
    }
    return {**made, "plain": json.dumps(about)}


def from_replica(saved: Any, members: Mapping[str, Trained], at: int, who: str) -> dict[str, Any]:
    """The state of one rank, whose shard is number `at` of its replica."""
    if not isinstance(saved, Mapping) or not isinstance(saved.get("plain"), str):
        raise ValueError(f"{who} is no state of a replica; it is damaged")
    about = json.loads(saved["plain"])
    for name, one in members.items():
        if about["parameters"].get(name) != list(one.parameter.shape):
            had = about["parameters"].get(name, "is missing")
            raise ValueError(
                f"the state was saved from another model: {name} has shape {list(one.parameter.shape)} here and "
                f"{had} there"
            )
    for section, keys in about["keys"].items():
        if missing := set(keys) - set(saved.get(section, {})):
            raise ValueError(f"{who} lacks {min(missing)!r}, which was saved; {READ}")
    shards = about["shards"]
    plain = dict(shards[at] if at < len(shards) else shards[0])
    plain["lr"] = {name: lr for one in shards for name, lr in one["lr"].items() if name in members}
    words = plain.pop("words")
    tensors: dict[str, Tensor] = {}
    for key in about["keys"]["tensors"]:
        one = members[_name(key)]
        data = _part(saved["tensors"][key], one, who).flatten()
        mask = _part(saved["held"][key], one, who).flatten() if key in about["keys"]["held"] else None
        for start, stop in [(0, data.numel())] if mask is None else _runs(mask):
            if start < stop:
                tensors[f"{key.split('|', 1)[0]}|{start}|{_name(key)}"] = data[start:stop].clone()
    state = {**plain, "parameters": {n: list(one.item.shape) for n, one in members.items()}, "tensors": tensors}
    if words is not None:
        state["outer"] = {name: dict(kept) for name, kept in words.items()}
        for section in ("outer", "numbers"):
            for key in about["keys"][section]:
                moment, name = key.split("|", 1)
                value = saved[section][key]
                kept = state["outer"].setdefault(name, {})
                kept[moment] = _part(value, members[name], who).clone() if section == "outer" else value.clone()
    return state


def template(route: Sequence[str], size: torch.Size, dtype: torch.dtype, members: Mapping[str, Trained]) -> Tensor:
    """An empty tensor into which this rank's part of a saved one can be read; `route` is where it was saved."""
    if route[-2] == "numbers":
        return torch.empty(size, dtype=dtype)
    one = members.get(_name(route[-1]))
    if one is None or one.parameter.shape != size:
        raise ValueError(f"the state was saved from another model: {_name(route[-1])} has shape {list(size)} there")
    return like(one.parameter, torch.empty(one.item.shape, dtype=dtype, device=one.item.device))


def _name(key: str) -> str:
    return key.split("|", 1)[1]


def _described(key: str, runs: list[tuple[int, Tensor]], members: Mapping[str, Trained]) -> tuple[str, bool]:
    """Its type, and whether it covers the shard."""
    count = sum(data.numel() for _, data in runs)
    return str(runs[0][1].dtype).removeprefix("torch."), count == members[_name(key)].item.numel


def _joined(runs: list[tuple[int, Tensor]], one: Trained, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One tensor of the runs, and where it holds something."""
    device = runs[0][1].device if runs else one.item.device
    data = torch.zeros(one.item.numel, dtype=dtype, device=device)
    mask = torch.zeros(one.item.numel, dtype=torch.uint8, device=device)
    for start, run in runs:
        data[start : start + run.numel()] = run
        mask[start : start + run.numel()] = 1
    return data.view(one.item.shape), mask.view(one.item.shape)


def _part(value: Any, one: Trained, who: str) -> Tensor:
    """The part on this rank of a DTensor that is cut as the parameter is."""
    if not is_sharded(value) or tuple(local(value).shape) != one.item.shape:
        raise ValueError(f"{who} was read for other shards than those of {one.item.name} here; {READ}")
    return local(value).detach()


def _runs(mask: Tensor) -> Iterator[tuple[int, int]]:
    """Where a mask is 1, as (start, stop)."""
    edges = torch.nn.functional.pad(mask.cpu().to(torch.int8), (1, 1)).diff()
    starts, stops = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
    yield from zip(starts.tolist(), stops.tolist(), strict=True)
