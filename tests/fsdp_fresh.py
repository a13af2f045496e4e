"""A case of `tw.fsdp` on four ranks: parameters that change between steps, after a pass without backward."""

from __future__ import annotations

import torch
from fsdp_cases import batch, grid, net, sgd, shard, step

import thinwire as tw


def fresh() -> dict[str, float]:
    """The root holds its parameters whole after validation; what changes them then is seen in the next pass."""
    mesh, out = grid(), {}
    model = shard(net(), mesh["shard"])
    optimizer = sgd(model)

    def stale() -> float:
        """How far a forward pass is from one for which everything has been gathered anew."""
        x, _ = batch(9)
        with torch.no_grad():
            now = model(x)
            model.reshard()  # type: ignore[operator]
            return float((now - model(x)).abs().max())

    with tw.fsdp(model, optimizer, tw.methods.diloco(every=9), replicas=mesh["replicate"]) as wire:
        step(model, optimizer, 0)
        state = wire.state_dict()
        step(model, optimizer, 1)
        stale()
        wire.load_state_dict(state)
        out["load"] = stale()
        step(model, optimizer, 1)
        stale()
        wire.switch(tw.methods.sgd())
        out["switch"] = stale()
    return out
