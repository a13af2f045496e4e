"""Control messages: what ranks tell each other in collectives of torch.distributed, as JSON.

The object collectives of torch send pickles, with which a peer can run code on those who read them. JSON gives them
values to check, and nothing else.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm import backend
from thinwire.core.comm import to_bytes, to_tensor

MOST = 2**28  # bytes of a message; a peer that says more is not one of us


def gathered(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """What each rank of the group (all ranks, if none is given) says, by rank: values that JSON has."""
    mine = _brought(to_tensor(json.dumps(value).encode()), group)
    sizes = [int(size) for size in _all(_brought(torch.tensor([mine.numel()]), group), group)]
    if max(sizes) > MOST:
        rank = sizes.index(max(sizes))
        raise ValueError(f"rank {rank} announces a message of {max(sizes)} bytes, and none has more than {MOST}")
    room = mine.new_zeros(max(sizes))
    room[: mine.numel()] = mine
    return [json.loads(to_bytes(part[:size])) for part, size in zip(_all(room, group), sizes, strict=True)]


def of_first(value: Any, group: dist.ProcessGroup | None = None) -> Any:
    """What the first rank of the group says: a value that JSON has."""
    first = 0 if group is None else dist.get_global_rank(group, 0)
    leads = dist.get_rank() == first
    mine = _brought(to_tensor(json.dumps(value).encode()) if leads else torch.empty(0, dtype=torch.uint8), group)
    size = _brought(torch.tensor([mine.numel()]), group)
    dist.broadcast(size, first, group=group)
    if int(size) > MOST:
        raise ValueError(f"rank {first} announces a message of {int(size)} bytes, and none has more than {MOST}")
    room = mine if leads else mine.new_empty(int(size))
    dist.broadcast(room, first, group=group)
    return json.loads(to_bytes(room))


def _brought(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Where the group's backend can read it."""
    return backend.named(str(dist.get_backend(group))).bring(x)


def _all(x: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return parts
