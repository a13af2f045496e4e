"""Process groups for the slots of a lane: a set is lent to one wire at a time, and used again afterwards.

Two wires that shared a group would read each other's messages, so each has a set of its own. Making groups takes a
meeting of all ranks. They are not torn down, because gloo now and then aborts the process when a group is destroyed
while another rank still talks on it. A wire that ends in good order gives its set back, and the next one takes it. A
wire that failed keeps its set, since messages may be left on it. Ranks agree on a set that is free on all of them.
"""

from __future__ import annotations

import weakref
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, final

import torch.distributed as dist

from thinwire.comm import backend
from thinwire.comm.processes import Processes, Ranks
from thinwire.engine.naming import new_group, number, raise_to

if TYPE_CHECKING:
    from thinwire.engine.dropping import Dropping
    from thinwire.engine.meeting import Meeting

Slot = dict[Ranks, dist.ProcessGroup]


@final
@dataclass(frozen=True)
class Wanted:
    """What a wire needs: for each of `slots` slots, a group of all ranks and the `groups` of some ranks.

    `lanes` are the drivers that work on them, one per slot, or several that take turns on one slot.
    """

    slots: int
    groups: tuple[Ranks, ...]
    timeout: float
    backend: str
    lanes: int = 0  # as many as slots, if 0
    aside: bool = False  # whether the last lane is for words that must not queue behind buckets

    @property
    def digest(self) -> int:
        """A checksum, which is the same number in every process."""
        return zlib.crc32(repr(self).encode())


@final
@dataclass(eq=False)
class Lent:
    """A set of groups that one wire uses."""

    number: int
    wanted: Wanted
    parent: dist.ProcessGroup
    slots: list[Slot] = field(default_factory=list)

    def drivers(self, dropping: Dropping | None = None) -> list[Processes]:
        """One driver per lane. With `dropping`, they go on without a neighbour that breaks off."""
        slots = len(self.slots)
        return [self.driver(lane % slots, dropping) for lane in range(max(slots, self.wanted.lanes))]

    def driver(self, slot: int, dropping: Dropping | None = None) -> Processes:
        """A driver on the groups of a slot that this rank is in."""
        rank = dist.get_rank(self.parent)
        mine = {ranks: group for ranks, group in self.slots[slot].items() if rank in ranks}
        used = backend.named(self.wanted.backend)
        return (
            Processes(mine, None, used) if dropping is None else Processes(mine, dropping.gone, used, dropping.drop)
        )

    def give_back(self) -> None:
        """Let the next wire have these groups, on which nothing is under way."""
        _free[id(self.parent)].append(self)


_free: defaultdict[int, list[Lent]] = defaultdict(list)
_made: defaultdict[int, int] = defaultdict(int)  # the number of the next set, which is the same on all ranks
ours: weakref.WeakSet[dist.ProcessGroup] = weakref.WeakSet()  # all that wires exchange in
_parents: dict[int, dist.ProcessGroup] = {}  # kept alive, so that no other group gets the id of one


def lend(parent: dist.ProcessGroup, wanted: Wanted, meeting: Meeting) -> Lent:
    """A set that nobody uses, with a group of all of `parent` and those of `wanted`; every rank calls it."""
    mine = [one.number for one in _free[id(parent)] if one.wanted == wanted]
    world = dist.distributed_c10d._world
    about = {"made": _made[id(parent)], "count": world.group_count, "number": number()}
    said = meeting.gather({"wanted": wanted.digest, "free": mine, **about})
    most = max(one["number"] for one in said)
    # torch names groups by it, and from 2.15 on counts groups of some ranks on these alone: a later group of all
    # ranks would have different names, and they would wait for each other for ever.
    world.group_count = max(one["count"] for one in said)
    made = max(one["made"] for one in said)  # a meeting that failed on some ranks may have taken one there alone
    if len({one["wanted"] for one in said}) > 1:
        # The handshake says in words how the ranks differ; until then they need groups that all of them can make.
        wanted = Wanted(1, (), wanted.timeout, wanted.backend)
        said = [{"free": []}]
    both = set.intersection(*(set(one["free"]) for one in said))
    if both:
        found = next(one for one in _free[id(parent)] if one.number == min(both))
        _free[id(parent)].remove(found)
        return found
    _parents[id(parent)] = parent
    _made[id(parent)] = made + 1
    lent = Lent(made, wanted, parent)
    lent.slots = meeting.together(lambda: [_make(parent, wanted, most) for _ in range(wanted.slots)])
    return lent


def _make(parent: dist.ProcessGroup, wanted: Wanted, most: int) -> Slot:
    """The groups of one slot; `most` is the highest number by which a rank of `parent` would name one."""
    everybody = tuple(range(dist.get_world_size(parent)))
    whole = dist.get_world_size(parent) == dist.get_world_size()  # if not, ranks outside it cannot be asked to join
    limit = timedelta(seconds=wanted.timeout)
    slot: Slot = {}
    for ranks in dict.fromkeys([everybody, *wanted.groups]):
        members = [dist.get_global_rank(parent, rank) for rank in ranks]
        if not whole:
            raise_to(most)
            most = number() + 1
        slot[ranks] = new_group(
            members, timeout=limit, backend=backend.named(wanted.backend).name, use_local_synchronization=not whole
        )
        if isinstance(slot[ranks], dist.ProcessGroup):  # of other ranks torch has a number in its place
            ours.add(slot[ranks])
        if not whole:
            raise_to(most)  # also on ranks that are not in it
    return slot
