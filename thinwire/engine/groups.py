"""Process groups for the slots of a lane: made once, kept, and used again by the next attach.

Making groups is collective: every rank asks for the same ones in the same order. They are not torn down, because
gloo aborts the process now and then when a group goes while another rank still talks on it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from thinwire.comm.processes import Processes, Ranks


class _Made(NamedTuple):
    parent: dist.ProcessGroup  # kept, so that its id is not given to another
    group: dist.ProcessGroup


_made: dict[tuple[int, int, float, str, Ranks], _Made] = {}


def drivers(
    parent: dist.ProcessGroup,
    slots: int,
    groups: list[Ranks],
    timeout: float,
    gone: set[int] | None = None,
    backend: str | None = None,
) -> list[Processes]:
    """One driver a slot, each with a group of everybody in `parent` and those of `groups` that this rank is in.

    With `gone`, drivers go on without a neighbour that breaks off, and add it to the set. `backend` is the parent's
    unless another one is given.
    """
    everybody = tuple(range(dist.get_world_size(parent)))
    backend = backend or dist.get_backend(parent)
    made = []
    for slot in range(slots):
        own = {ranks: _make(parent, slot, ranks, timeout, backend) for ranks in dict.fromkeys([everybody, *groups])}
        made.append(Processes({r: group for r, group in own.items() if dist.get_rank(parent) in r}, gone))
    return made


def _make(parent: dist.ProcessGroup, slot: int, ranks: Ranks, timeout: float, backend: str) -> dist.ProcessGroup:
    key = (id(parent), slot, timeout, backend, ranks)
    if key not in _made:
        members = [dist.get_global_rank(parent, rank) for rank in ranks]
        whole = dist.get_world_size(parent) == dist.get_world_size()  # else ranks outside it cannot be asked to join
        limit = timedelta(seconds=timeout)
        group = dist.new_group(members, timeout=limit, backend=backend, use_local_synchronization=not whole)
        _made[key] = _Made(parent, group)
    return _made[key].group
