"""Naming: groups that only their own ranks make must have one name on all of them.

torch names such a group by its ranks and a number: how many groups the rank that makes it is in, or, from 2.15 on,
how many it has seen being made. Where some of these ranks are in a group without the rest, such as one that the user
has made of two ranks for a log, or have seen one that the rest has not, the names would differ, and the ranks wait
for each other for ever. So they first tell each other their numbers, and those with a lower one raise it.

Names repeat when torchrun starts the job again, while its store keeps what was left under them. So every group of
ours has a place in the store that is of this attempt alone (`engine/store.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist

from thinwire.core.errors import PeerError
from thinwire.engine.store import attempt_store

_calls: Counter[tuple[int, ...]] = Counter()


def new_group(ranks: Sequence[int] | None = None, **options: Any) -> dist.ProcessGroup:
    """What `dist.new_group` returns, made in the place of this attempt: it takes no other store by itself."""
    world: Any = dist.distributed_c10d._world
    default = dist.distributed_c10d._get_default_group()
    before = world.pg_map[default]
    world.pg_map[default] = before[0], attempt_store()
    try:
        group: dist.ProcessGroup = dist.new_group(ranks, **options)
        return group
    finally:
        world.pg_map[default] = before


@cache
def _counted() -> bool:
    """Whether the number is that of groups seen: then the name of a group depends on it."""
    c10d = dist.distributed_c10d
    before, name = c10d._world.group_count, c10d._hash_ranks_to_str([0])
    c10d._world.group_count = before + 1
    later = c10d._hash_ranks_to_str([0])
    c10d._world.group_count = before
    return later != name


def number() -> int:
    """The number by which this rank would name its next group of some ranks."""
    world = dist.distributed_c10d._world
    return world.group_count if _counted() else len(world.pg_names)


def raise_to(most: int) -> None:
    """Raise the number to `most`; where it is that of the groups that this rank is in, by groups of itself alone."""
    if _counted():
        dist.distributed_c10d._world.group_count = max(most, number())
        return
    for _ in range(most - number()):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


def _absent(store: dist.Store, keys: dict[int, str], timeout: float, error: RuntimeError) -> PeerError:
    """Names the ranks whose key is not there, as far as the store still answers."""
    try:
        ranks = [rank for rank, key in keys.items() if not store.check([key])]
    except RuntimeError:
        ranks = []
    missing = ", ".join(map(str, ranks)) or "some"
    return PeerError(
        f"of ranks {list(keys)}, these did not come within {timeout:.0f} s: {missing} ({error})", tuple(ranks)
    )


def level(ranks: Sequence[int], timeout: float) -> None:
    """Let these ranks have one number; all of them call it."""
    store = attempt_store()
    who = tuple(ranks)
    place = f"thinwire/level/{'-'.join(map(str, who))}/{_calls[who]}"
    _calls[who] += 1
    keys = [f"{place}/{rank}" for rank in who]
    store.set(f"{place}/{dist.get_rank()}", str(number()))
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError as error:  # which those of the store are
        raise _absent(store, dict(zip(who, keys, strict=True)), timeout, error) from error
    raise_to(max(int(store.get(key)) for key in keys))
