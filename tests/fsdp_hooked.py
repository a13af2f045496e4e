"""A case of test_fsdp.py: hooks of the user on sharded parameters that are registered after tw.fsdp."""

from __future__ import annotations

from typing import Any

from fsdp_cases import apart, grid, line, net, sgd, shard, step
from torch import Tensor

import thinwire as tw


def hooked() -> dict[str, Any]:
    """Gradients that a hook halves, against half the learning rate; and how often it was called per parameter."""
    plain, ours = shard(net(), line()), shard(net(), grid()["shard"])
    optimizers, calls = [sgd(plain, lr=0.05), sgd(ours, lr=0.1)], 0

    def halve(p: Tensor) -> None:
        nonlocal calls
        assert p.grad is not None
        p.grad.mul_(0.5)
        calls += 1

    with tw.fsdp(ours, optimizers[1], tw.methods.sgd(), replicas=grid()["replicate"]):
        for p in ours.parameters():
            p.register_post_accumulate_grad_hook(halve)
        for number in range(3):
            for model, optimizer in zip([plain, ours], optimizers, strict=True):
                step(model, optimizer, number)
    return {"apart": apart(plain, ours), "calls": calls / len([*ours.parameters()])}
