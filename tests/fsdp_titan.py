"""Cases of `tw.fsdp` on four ranks: what programs like torchtitan do."""

from __future__ import annotations

import torch.distributed as dist
from fsdp_cases import apart, full, grid, net, sgd, shard, step
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import thinwire as tw
from thinwire.exchange import AllReduce
from thinwire.sync import Delta, Sgd


def loaded() -> dict[str, float]:
    """The optimizer's state is made with a step, and a checkpoint is read into live parameters, after tw.fsdp.

    Two local steps later all go on from the mean of their models; a first step of 0 counts for nothing.
    """
    mesh = grid()
    model, twin = shard(net(), mesh["shard"]), shard(net(5), mesh["shard"])
    one, other = sgd(model), sgd(twin)
    method = tw.Method(AllReduce(), tw.Sync(of=Delta(outer=Sgd(lr=1.0, momentum=0.0)), every=2))
    with tw.fsdp(model, one, method, replicas=mesh["replicate"]) as wire:
        get_optimizer_state_dict(model, one)
        for live, value in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
            live.copy_(value)
        set_out = wire.anchor()
        shards = {name: p.to_local().clone() for name, p in twin.named_parameters()}  # type: ignore[attr-defined]
        step(model, one, 0)
        step(twin, other, 0)
        alone = apart(model, twin)
        step(model, one, 1)
        step(twin, other, 1)
    mean = full(twin)
    dist.all_reduce(mean)
    return {
        "anchor": max(float((set_out[name] - value).abs().max()) for name, value in shards.items()),
        "local step": alone,
        "mean": float((full(model) - mean / 4).abs().max()),
    }


def titan() -> dict[str, dict[str, float]]:
    return {"loaded": loaded()}
