"""Naming: groups that only their own ranks make must have one name on all of them.

torch names such a group by its ranks and by how many groups the rank that makes it is in. Where some of them are in
another group without the rest, such as one that the user has made of two ranks for a log, the names differ, and the
ranks would wait for each other for ever. So they first tell each other, and those that are in fewer groups make some
of themselves alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from thinwire.core.errors import PeerError

_calls: Counter[tuple[int, ...]] = Counter()


def named() -> int:
    """How many groups this rank is in."""
    return len(dist.distributed_c10d._world.pg_names)


def fill_up(most: int) -> None:
    """Be in as many groups as `most`."""
    for _ in range(most - named()):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


def level(ranks: Sequence[int], timeout: float) -> None:
    """Let these ranks be in equally many groups; all of them call it."""
    store = dist.distributed_c10d._get_default_store()
    who = tuple(ranks)
    place = f"thinwire/level/{'-'.join(map(str, who))}/{_calls[who]}"
    _calls[who] += 1
    keys = [f"{place}/{rank}" for rank in who]
    store.set(f"{place}/{dist.get_rank()}", str(named()))
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError as error:  # which those of the store are
        raise PeerError(f"of ranks {list(who)}, some did not come within {timeout:.0f} s ({error})") from error
    fill_up(max(int(store.get(key)) for key in keys))
