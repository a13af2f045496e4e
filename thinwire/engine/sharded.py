"""Sharded: this rank holds one shard of a replica, and the ranks that hold the others decide together with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

from thinwire.comm.control import gathered
from thinwire.engine import checkpoint
from thinwire.engine.from_disk import fill, metadata_of
from thinwire.engine.naming import level, new_group
from thinwire.engine.sharded_state import from_replica, template, to_replica
from thinwire.engine.sharding import check_carried, reshard
from thinwire.engine.share import Share

if TYPE_CHECKING:
    from torch import nn

    from thinwire.core.method import Method
    from thinwire.engine.parameters import Trained

REPLICA = "replica"


@cache  # groups are not torn down (see `engine/groups.py`), so the next wire on these ranks has the same
def _meeting_place(ranks: tuple[int, ...], timeout: float, world: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group for decisions: single numbers that the host waits for, so they travel from host to host."""
    level(ranks, timeout)
    return new_group(list(ranks), timeout=timedelta(seconds=timeout), backend="gloo", use_local_synchronization=True)


@final
class Sharded(Share):
    """The shards of the parameters `members` of a model on this rank; `ranks` hold the replica together.

    `replicas` are the ranks that hold the same shards.
    """

    def __init__(
        self,
        model: nn.Module,
        members: Sequence[Trained],
        ranks: Sequence[int],
        replicas: dist.ProcessGroup,
        timeout: float,
    ) -> None:
        self._model = model
        self._members = {one.item.name: one for one in members}
        self._ranks, self._replicas = sorted(ranks), replicas
        self._at = self._ranks.index(dist.get_rank())
        self._group = _meeting_place(tuple(self._ranks), timeout, dist.group.WORLD)

    @property
    def name(self) -> str:
        """Which shard."""
        return f"shard {self._at} of {len(self._ranks)}"

    @property
    def speaks(self) -> bool:
        """The rank that holds the first shard does."""
        return self._at == 0

    def check(self, method: Method) -> None:
        """It must work shard by shard."""
        check_carried(method)

    def agree(self, broken: bool) -> bool:
        """Whether it is broken in any shard: a step that some of them leave out would tear the model apart."""
        if len(self._ranks) == 1:
            return broken
        flag = torch.tensor(int(broken))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag)

    def gather(self, mine: Any) -> list[Any]:
        """What each rank of the replica says, in values that JSON has; all of them call it."""
        return gathered(mine, self._group)

    def forget_copies(self) -> None:
        """FSDP gathers them again when they are needed."""
        reshard(self._model)

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        """The replica's state, of which this rank has a shard; all ranks of the replica call it."""
        (one,) = state.values()
        return {f"{REPLICA}{dist.get_rank(self._replicas)}": to_replica(one, self._members, self.gather)}

    def check_gathered(self) -> None:
        """It would not fit, and torch.distributed.checkpoint stores it for any number of ranks."""
        raise ValueError(
            'under tw.fsdp no rank can hold the states of all; write dcp.save({"wire": wire}, checkpoint_id=path), '
            "and wire.load_state_dict(wire.read(path)) on any number of ranks"
        )

    def loaded(self, saved: checkpoint.Saved) -> checkpoint.Saved:
        """One state per replica, of this rank's shard."""
        found: dict[str, Any] = {}
        for states in [saved] if isinstance(saved, Mapping) else saved:
            for key, state in states.items():
                number = str(key).removeprefix(REPLICA)
                if number == key or not number.isdecimal():
                    raise ValueError(
                        f"{key!r} is no state of a replica; write wire.load_state_dict(s) with what "
                        "wire.state_dict() of tw.fsdp returned"
                    )
                who = f"the state of replica {number}"
                found[f"rank{number}"] = from_replica(state, self._members, self._at, who)
        return found

    def read(self, path: str, name: str) -> list[dict[str, Any]]:
        """The state of this replica, or of all replicas where their number has changed; of each, this shard alone."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415

        metadata = metadata_of(path)
        paths = {key: route for key, route in (metadata.planner_data or {}).items() if route[0] == name}
        if not paths:
            raise ValueError(f"{path} holds nothing under {name!r}; write the key that dcp.save was given")
        replicas = sorted({str(route[1]) for route in paths.values()} - {"inside"})
        own = f"{REPLICA}{dist.get_rank(self._replicas)}"
        if len(replicas) == dist.get_world_size(self._replicas) and own in replicas:
            replicas = [own]
        paths = {key: route for key, route in paths.items() if route[1] in replicas}
        flat: dict[str, Any] = {}
        for key, route in paths.items():
            about = metadata.state_dict_metadata[key]
            flat[key] = None
            if isinstance(about, TensorStorageMetadata):
                words = [str(step) for step in route]
                flat[key] = template(words, about.size, about.properties.dtype, self._members)
        fill(flat, path)
        states: dict[str, dict[str, Any]] = {replica: {} for replica in replicas}
        for key, (_, replica, *rest) in paths.items():
            place = states[str(replica)]
            for step in rest[:-1]:
                place = place.setdefault(str(step), {})
            place[str(rest[-1])] = flat[key]
        return [{replica: state} for replica, state in states.items()]
