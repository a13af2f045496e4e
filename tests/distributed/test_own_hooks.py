"""Hooks of the user on parameters: they run before gradients are sent, whenever they were registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said
from ranks import on_ranks
from torch import Tensor, nn

import thinwire as tw


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def clip(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.clamp_(-0.01, 0.01)


def clip_a_copy(p: Tensor) -> None:
    assert p.grad is not None
    p.grad = p.grad.clamp(-0.01, 0.01)


def clipped(hook: Callable[[Tensor], None], when: str) -> list[Any]:
    """Hooks of the user change gradients, in small buckets that travel during backward."""
    model = net()
    optimizer = sgd(model)
    small = replace(tw.methods.sgd(), overlap=tw.Overlap(bucket_mb=1024 / 2**20))
    for now in ("before", "after"):
        if now == when:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(hook)
        if now == "before":
            wire = tw.attach(model, optimizer, small, min_size=0)
    for step in range(6):
        optimizer.zero_grad()
        if step % 2:
            with wire.no_sync():
                loss(model, batch(10 + step)).backward()
        loss(model, batch(step)).backward()
        optimizer.step()
    wire.detach()
    return [flat(model), equal_everywhere(flat(model))]


def clipped_in_all_ways() -> list[Any]:
    return [clipped(hook, when) for when in ("before", "after") for hook in (clip, clip_a_copy)]


def test_hooks_that_change_gradients_run_before_these_are_sent_whenever_they_were_registered() -> None:
    for (first, _), *others in on_ranks(clipped_in_all_ways, 2):
        for model, equal in others:
            assert equal
            assert torch.equal(model, first)


def clipped_later() -> list[Any]:
    """The third step is the first with hooks, beside one process that clips the gradients of each rank's batch."""
    model, alone = net(), net()
    optimizer, other = sgd(model), sgd(alone)
    with tw.attach(model, optimizer, tw.methods.sgd(), min_size=0):
        for step in range(4):
            if step == 2:
                for p in model.parameters():
                    p.register_post_accumulate_grad_hook(clip)
            optimizer.zero_grad()
            loss(model, batch(step)).backward()
            optimizer.step()
    for step in range(4):
        grads = []
        for rank in range(dist.get_world_size()):
            other.zero_grad()
            loss(alone, batch(step, rank)).backward()
            grads.append([p.grad.clamp(-0.01, 0.01) if step >= 2 else p.grad for p in alone.parameters()])  # type: ignore[union-attr]
        for p, *ours in zip(alone.parameters(), *grads, strict=True):
            p.grad = torch.stack(ours).mean(0)
        other.step()
    return [float((flat(model) - flat(alone)).abs().max()), equal_everywhere(flat(model))]


def test_hooks_may_come_in_the_middle_of_training() -> None:
    for apart, equal in on_ranks(clipped_later, 2):
        assert apart < 1e-6
        assert equal


def taken_away(when: str) -> str:
    """A hook steps as soon as a gradient is there, and sets it to None."""
    model = net()

    def forget(p: Tensor) -> None:
        p.grad = None

    weight = next(model.parameters())
    if when == "before":
        weight.register_post_accumulate_grad_hook(forget)
    with tw.attach(model, sgd(model), tw.methods.sgd(), min_size=0):
        if when == "after":
            weight.register_post_accumulate_grad_hook(forget)
        return said(loss(model, batch(0)).backward)


def taken_away_in_both_ways() -> list[str]:
    return [taken_away("before"), taken_away("after")]


def test_a_hook_that_takes_a_gradient_away_is_named() -> None:
    for told in on_ranks(taken_away_in_both_ways, 1)[0]:
        assert told.startswith("RuntimeError: a hook on 0.weight has set its gradient to None")
