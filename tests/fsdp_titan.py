"""Cases of `tw.fsdp` on four ranks: what programs like torchtitan do."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from fsdp_cases import apart, batch, full, grid, line, net, sgd, shard, step
from nets import loss
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import FSDPModule

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
        alone = []
        for number in range(2):
            step(model, one, number)
            step(twin, other, number)
            alone.append(apart(model, twin))
    mean = full(twin)
    dist.all_reduce(mean)
    return {
        "anchor": max(float((set_out[name] - value).abs().max()) for name, value in shards.items()),
        "local step": alone[0],
        "mean": float((full(model) - mean / 4).abs().max()),
    }


def summed() -> dict[str, float]:
    """The loss is a sum, divided by the samples of all ranks; FSDP sums gradients, and so do we between replicas."""
    mesh = grid()
    plain, ours = shard(net(), line()), shard(net(), mesh["shard"])
    one, other = sgd(plain), sgd(ours)
    for module in ours.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tw.fsdp(ours, other, tw.methods.sgd(), replicas=mesh["replicate"]).detach()
        warned = sum('write tw.fsdp(..., reduce="sum")' in str(warning.message) for warning in told)
        with tw.fsdp(ours, other, tw.methods.sgd(), replicas=mesh["replicate"], reduce="sum"):
            warned_again = sum("reduce=" in str(warning.message) for warning in told) - warned
            for number in range(2):
                step(plain, one, number)
                other.zero_grad()
                (loss(ours, batch(number)) / dist.get_world_size()).backward()
                other.step()
    return {"apart": apart(plain, ours), "warnings": warned + 10.0 * warned_again}


def in_chunks() -> dict[str, float]:
    """The head has its backward pass, and then the body has another: each sends its own part."""
    mesh = grid()
    model, twin = shard(net(), mesh["shard"]), shard(net(), line())
    one, other = sgd(model), sgd(twin)
    head, sent = len(list(model.children())) - 1, []
    method = tw.Method(AllReduce(), overlap=tw.Overlap(bucket_mb=1e-4))
    with tw.fsdp(model, one, method, replicas=mesh["replicate"], min_size=0) as wire:
        for number in range(3):
            step(twin, other, number)
            one.zero_grad()
            x, y = batch(number)
            before = wire.stats()["elements"]
            cuts: list[Tensor] = []

            def cut(module: Any, args: tuple[Tensor], cuts: list[Tensor] = cuts) -> tuple[Tensor]:
                cuts.extend((args[0], args[0].detach().requires_grad_()))
                return (cuts[1],)

            handle = model[head].register_forward_pre_hook(cut)  # type: ignore[index]
            (model(x) - y).square().mean().backward()
            handle.remove()
            cuts[0].backward(cuts[1].grad)
            one.step()
            sent.append(wire.stats()["elements"] - before)
    total = sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]
    return {"apart": apart(model, twin), "elements": sent[-1] / total}


def overflown() -> dict[str, Any]:
    """Sums in fp16 overflow, and no shard steps; then all do."""
    mesh = grid()
    model = shard(net(), mesh["shard"])
    optimizer = sgd(model)
    with tw.fsdp(model, optimizer, tw.methods.fp16(), replicas=mesh["replicate"], min_size=0) as wire:
        before = full(model)
        x, y = batch(0)
        ((model(x) - y).square().mean() * 1e10).backward()
        finite = all(bool(p.grad.to_local().isfinite().all()) for p in model.parameters())  # type: ignore[union-attr]
        optimizer.step()
        same, skipped = torch.equal(before, full(model)), wire.stats()["steps_skipped"]
        step(model, optimizer, 1)
    return {"finite": finite, "same": same, "skipped": skipped, "goes on": not torch.equal(before, full(model))}


def titan() -> dict[str, dict[str, Any]]:
    return {"loaded": loaded(), "summed": summed(), "in chunks": in_chunks(), "overflown": overflown()}
