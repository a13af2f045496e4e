"""A case of `tw.fsdp` on four ranks: replicas with different numbers of batches."""

from __future__ import annotations

import torch
import torch.distributed as dist
from fsdp_cases import BOTH, OUTER, Forked, full, grid, replica, shard, step
from wholes import whole

import thinwire as tw


def joined() -> dict[str, bool]:
    """One replica has more batches than the other, under a method of gradients and under one of models."""
    found: dict[str, bool] = {}
    for method in (BOTH, OUTER):
        model = shard(Forked(), grid()["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with tw.fsdp(model, optimizer, tw.method(method), replicas=grid()["replicate"], min_size=0) as wire:
            for block in range(2):
                with wire.join():
                    for number in range((5, 2)[replica()]):
                        step(model, optimizer, 10 * block + number)
            moments = [whole(state["momentum_buffer"]).flatten() for state in optimizer.state.values()]
            mine = torch.cat([full(model), *(moments if method == BOTH else [])])
            copies = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(copies, mine)
            found[method] = all(torch.equal(copy, mine) for copy in copies) and bool(mine.isfinite().all())
    return found
