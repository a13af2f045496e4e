"""Checkpoints: what the memories hold, by parameter and element, so that another plan can take it up.

A rank's state is one entry "rank<r>" of plain values and tensors: `torch.load(weights_only=True)` reads it, and
torch.distributed.checkpoint stores the ranks beside each other. The tensors are those of `thinwire.engine.pieces`.

Restoring asks for elements, not for buckets. Each rank takes its own where it has them. An element that another rank
owned under the old plan comes from that rank. When the number of ranks has changed, every entry of a state does what
its slot says: residuals, for example, become the mean over the ranks that held the element, so that their mean is
what it was.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast, get_args

import torch
from torch import Tensor

from thinwire.core.comm import to_bytes, to_tensor
from thinwire.core.config import from_json
from thinwire.core.version import VERSION
from thinwire.engine.checksums import check_checksums, digest
from thinwire.engine.damage import FORMAT, check_entries, check_tensors
from thinwire.engine.from_disk import fill, metadata_of
from thinwire.engine.handshake import handshake
from thinwire.engine.pieces import Held, Piece, assembled, covered, held, pieces, stored

if TYPE_CHECKING:
    from thinwire.core.comm import Comm
    from thinwire.core.method import Method
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.runner import Runner
    from thinwire.engine.schedules.base import Schedule

T = TypeVar("T")
COMMON = ("ranks", "round", "seed", "method")  # the same in the states of all ranks
OnResize = Literal["mean", "reset", "error"]
Saved = Mapping[str, Any] | Sequence[Mapping[str, Any]]
States = Mapping[int, Mapping[str, Any]]  # by rank


def collect(runner: Runner, buckets: Sequence[Bucket], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state of this rank, with the entries of `more`."""
    lr = {item.name: chunk.lr for b in buckets for chunk in b.chunks for item in b.items if chunk.lr is not None}
    state = {
        "format": FORMAT,
        "thinwire": VERSION,
        "method": runner.method.to_json(),
        "ranks": runner.comm.size,
        "round": runner.round,
        "seed": runner.seed,
        "lr": lr,
        "motion": list(runner.motion.steps),
        "parameters": {item.name: list(item.shape) for bucket in buckets for item in bucket.items},
        "tensors": stored(pieces(runner.comm, buckets)),
        **(more or {}),
    }
    return {f"rank{runner.comm.rank}": state}


class Restored(NamedTuple):
    """What was saved besides memories."""

    own: Mapping[str, Any]  # by this rank, or by one of them where their number has changed
    everybody: Mapping[int, Mapping[str, Any]]  # the states that were given, by rank
    resized: bool  # whether the number of ranks has changed
    fresh: bool  # whether memories are then forgotten


async def agree_on(runner: Runner, states: States, schedule: Schedule) -> None:
    """ValueError on all ranks if some have states of another run or time. Every rank calls it."""
    mine = {name: str(value) for name, value in _in_common(next(iter(states.values())), schedule).items()}
    wrong = await runner.transport.launch(lambda comm: handshake(comm, mine, runner.transport.name))
    if wrong:
        raise ValueError(f"the states come from different runs or times: {wrong}")


async def restore(runner: Runner, buckets: Sequence[Bucket], states: States, *, on_resize: OnResize) -> Restored:
    """Fill the memories; one that was not saved for a parameter starts anew. Every rank calls it.

    The states were looked at (`checked`), or `collect` has made them in this process.
    """
    comm = runner.comm
    first = states.get(comm.rank, next(iter(states.values())))
    by_rank = {rank: held(state["tensors"]) for rank, state in states.items()}
    own = by_rank[comm.rank] if first["ranks"] == comm.size else None
    fresh = own is None and on_resize == "reset"
    wanted = [piece for piece in pieces(comm, buckets) if piece.leads]
    lacking = set() if own is None else {piece.where[0] for piece in wanted if not covered(own, piece)}
    shared = await runner.transport.launch(lambda comm: _share(comm, sorted(lacking), own or {}))
    for rank, given in shared.items():
        by_rank[rank] = {**by_rank.get(rank, {}), **given}

    def find(piece: Piece) -> Tensor | None:
        saved_somewhere = any(piece.where in one for one in by_rank.values())
        if not saved_somewhere or (fresh and not piece.model):
            return None
        if own is not None:
            return assembled([own] if covered(own, piece) else [*by_rank.values()], piece)
        return _resized(by_rank, piece, comm)

    found = await agreed(runner, lambda: [(piece, find(piece)) for piece in wanted])
    for piece, data in found:
        if data is None:
            piece.data.fill_(piece.slot.fill)
        else:
            piece.data.copy_(data)
    runner.round = first["round"]
    runner.seed = first["seed"]
    runner.motion.restore(first["motion"])
    for bucket in buckets:
        for chunk in bucket.chunks:
            chunk.lr = first["lr"].get(bucket.items[0].name)
    return Restored(first, states, own is None, fresh)


def _resized(by_rank: Mapping[int, Held], wanted: Piece, comm: Comm) -> Tensor | None:
    """What the slot makes of the numbers of another number of ranks; None starts anew."""
    slot, everybody = wanted.slot, [*by_rank.values()]
    if slot.replicated or slot.on_resize == "mean":
        return assembled(everybody, wanted)
    if slot.on_resize == "sum":
        return assembled(everybody, wanted, shares=comm.size)
    own = by_rank.get(comm.rank, {})
    return assembled([own], wanted) if slot.on_resize == "keep" and covered(own, wanted) else None


async def agreed(runner: Runner, work: Callable[[], T], any_shard: Callable[[bool], bool] = bool) -> T:
    """The result of `work`; what it raises on one rank is raised on every rank, so that none goes on alone.

    `any_shard` says whether it has failed on a rank that holds another shard of this replica.
    """
    wrong, result = "", None
    try:
        result = work()
    except Exception as error:  # whatever it is, the state is not what `collect` made
        wrong = str(error) or repr(error)
    if any_shard(bool(wrong)) and not wrong:
        wrong = "the state of another shard of this replica cannot be loaded; the rank that holds it says why"
    said = await runner.transport.launch(lambda comm: _tell(comm, wrong))
    told = wrong or next(
        (f"rank {runner.transport.name(rank)}: {text}" for rank, text in enumerate(said) if text), ""
    )
    if told:
        raise ValueError(told)
    return cast("T", result)


async def _tell(comm: Comm, text: str) -> list[str]:
    return [to_bytes(said).decode().strip() for said in await comm.all_gather(to_tensor((text or " ").encode()))]


def checked(
    runner: Runner, buckets: Sequence[Bucket], schedule: Schedule, saved: Saved, on_resize: OnResize
) -> dict[int, Mapping[str, Any]]:
    """The states by rank, if they can be loaded here; ValueError otherwise. Nothing is changed."""
    if on_resize not in get_args(OnResize):
        raise ValueError(f"on_resize={on_resize!r}: write one of {', '.join(map(repr, get_args(OnResize)))}")
    states = states_of(saved)
    names = [n for b in buckets for c in b.chunks for n in c.state] + [n for b in buckets for n in b.extra]
    comm = runner.comm
    for rank, state in states.items():
        who = f"the state of rank {rank}"
        check_entries(who, state)
        _check_method(runner.method, state)
        _check_model(buckets, state["parameters"])
        # Names may tell of neighbours, so those of other ranks, or of another number of ranks, are not known here.
        own = rank == comm.rank and state["ranks"] == comm.size
        check_tensors(who, state, names if own else ())
        schedule.check(who, state, own=own)
        if own:
            _check_models(who, comm, buckets, state)
        check_checksums(who, state)
    first = next(iter(states.values()))
    for rank, state in states.items():
        for entry, value in _in_common(state, schedule).items():
            if value != (common := _in_common(first, schedule)[entry]):
                raise ValueError(
                    f"the states come from different runs or times: '{entry}' is {common!r} for rank "
                    f"{min(states)} and {value!r} for rank {rank}"
                )
    if first["ranks"] != comm.size and on_resize == "error":
        raise ValueError(f'saved on {first["ranks"]} ranks, loaded on {comm.size}; write on_resize="mean" or "reset"')
    if _any_will_do(comm, buckets, schedule):
        return {comm.rank: first}
    if first["ranks"] == comm.size:
        if comm.rank not in states:
            raise ValueError(
                f"rank {comm.rank} was given the state of rank {min(states)}, and each has memories of its own; load "
                "this rank's own file, or on all ranks one file with wire.gather_state()"
            )
    elif on_resize == "mean" and len(states) < first["ranks"]:
        raise ValueError(
            f"saved on {first['ranks']} ranks, loaded on {comm.size}: the mean needs all their states; "
            "write wire.load_state_dict([torch.load(f, weights_only=True) for f in files]), or save one file with "
            "wire.gather_state()"
        )
    return states


def _in_common(state: Mapping[str, Any], schedule: Schedule) -> dict[str, Any]:
    """What must be the same in the states of all ranks."""
    served = schedule.loop.method.exchange.served
    entries = {name: state[name] for name in COMMON if not (served and name == "round")}
    tensors = {key: x for key, x in state["tensors"].items() if key.split("|")[0] in schedule.shared_extra}
    return {**entries, **schedule.in_common(state), **({"tensors": digest(tensors)} if tensors else {})}


def _any_will_do(comm: Comm, buckets: Sequence[Bucket], schedule: Schedule) -> bool:
    """Whether this rank keeps nothing that others do not keep as well."""
    shared = schedule.shared_extra
    return not schedule.loop.method.exchange.served and all(
        piece.where[0] in shared if piece.model else piece.slot.replicated for piece in pieces(comm, buckets)
    )


def _check_models(who: str, comm: Comm, buckets: Sequence[Bucket], state: Mapping[str, Any]) -> None:
    """A memory may start anew, but not a model or an anchor."""
    own = held(state["tensors"])
    for piece in pieces(comm, buckets):
        if piece.model and not covered(own, piece):
            raise ValueError(f"{who} lacks '{piece.where[0]}' for elements of {piece.where[1]}; it is damaged")


def _check_method(method: Method, state: Mapping[str, Any]) -> None:
    """Refuse the state of another method, and say which field differs. How it was bucketed does not matter."""
    before = from_json(state["method"])
    if (before.exchange, before.sync) != (method.exchange, method.sync):
        differs = _difference(before.to_config(), method.to_config())
        raise ValueError(
            f"the state was saved with another method: {differs}; attach with that one, "
            "load, and write wire.switch(method)"
        )


async def gathered(runner: Runner, state: Mapping[str, Any]) -> dict[str, Any]:
    """The states of all ranks in one dict, on rank 0; the others get an empty one. Every rank calls it."""

    async def gather(comm: Comm) -> dict[str, Any]:
        if comm.rank:
            buffer = io.BytesIO()
            torch.save(dict(state), buffer)
            await comm.send(0, to_tensor(buffer.getvalue()))
            return {}
        out = dict(state)
        for source in range(1, comm.size):
            data = (await comm.recv(source))[1]
            out |= torch.load(io.BytesIO(to_bytes(data)), map_location="cpu", weights_only=True)
        return out

    return await runner.transport.launch(gather)


def read(path: str, name: str = "wire") -> list[dict[str, Any]]:
    """All ranks' states from a torch.distributed.checkpoint, for a run on another number of ranks or another plan.

    `name` is the key under which the handle was saved: `dcp.save({"wire": wire, ...})`.
    """
    return [{rank: state} for rank, state in read_part(path, (name,)).items()]


def read_part(
    path: str, under: tuple[str, ...], choose: Callable[[Sequence[str]], Sequence[str]] = lambda found: found
) -> dict[str, Any]:
    """What a torch.distributed.checkpoint holds under some keys: of the entries there, those that are chosen."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415

    metadata, depth = metadata_of(path), len(under)
    paths = {key: route for key, route in (metadata.planner_data or {}).items() if tuple(route[:depth]) == under}
    if not paths:
        raise ValueError(f"{path} holds nothing under {'.'.join(under)!r}; write the key that dcp.save was given")
    chosen = choose(sorted({str(route[depth]) for route in paths.values()}))
    flat: dict[str, Any] = {}
    for key, route in paths.items():
        if str(route[depth]) in chosen:
            about = metadata.state_dict_metadata[key]
            flat[key] = None
            if isinstance(about, TensorStorageMetadata):
                flat[key] = torch.empty(about.size, dtype=about.properties.dtype)
    fill(flat, path)
    states: dict[str, Any] = {}
    for key, value in flat.items():
        place = states
        for step in paths[key][depth:-1]:
            place = place.setdefault(step, {})
        place[paths[key][-1]] = value
    return states


async def _share(comm: Comm, lacking: list[str], own: Held) -> dict[int, Held]:
    """From every rank, the pieces of those memories that some rank lacks."""
    said = await comm.all_gather(to_tensor(json.dumps(lacking).encode()))
    wanted = {memory for text in said for memory in json.loads(to_bytes(text))}
    if not wanted:
        return {}
    buffer = io.BytesIO()
    torch.save({f"{m}|{n}": parts for (m, n), parts in own.items() if m in wanted}, buffer)
    shared: dict[int, Held] = {}
    for rank, data in enumerate(await comm.all_gather(to_tensor(buffer.getvalue()))):
        loaded = torch.load(io.BytesIO(to_bytes(data)), map_location="cpu", weights_only=True)
        shared[rank] = {(key.split("|", 1)[0], key.split("|", 1)[1]): parts for key, parts in loaded.items()}
    return shared


def _check_model(buckets: Sequence[Bucket], before: Mapping[str, list[int]]) -> None:
    for bucket in buckets:
        for item in bucket.items:
            if before.get(item.name) != list(item.shape):
                had = f"{before[item.name]}" if item.name in before else "is missing"
                raise ValueError(
                    f"the state was saved from another model: {item.name} has shape {list(item.shape)} here "
                    f"and {had} there"
                )


def states_of(saved: Saved) -> dict[int, Mapping[str, Any]]:
    """The states in what `state_dict` returned, of one rank or of several, by rank."""
    several = [saved] if isinstance(saved, Mapping) else list(saved)
    states: dict[int, Mapping[str, Any]] = {}
    for one in several:
        for key, state in one.items() if isinstance(one, Mapping) else ():
            if str(key).startswith("rank") and str(key)[4:].isdecimal():
                states[int(key[4:])] = state
    if not states:
        raise ValueError(
            "not a state of thinwire: write wire.load_state_dict(s) with what wire.state_dict() returned"
        )
    return dict(sorted(states.items()))


def _difference(before: Any, now: Any, path: str = "method") -> str:
    """The first field in which two configs differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != now.get(key) and key not in ("label", "overlap"):
                return _difference(before.get(key), now.get(key), f"{path}.{key}")
    return f"{path} was {before!r} and is {now!r}"
