"""Gradients: buckets are filled and launched as backward computes; the results are in `p.grad` when it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

import torch
from torch import nn
from torch.autograd import Variable

from thinwire.core.clock import Clock
from thinwire.engine.rounds import Packed, Rounds
from thinwire.engine.signal import GradSource, Source

if TYPE_CHECKING:
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.parameters import Trained


@final
class Gradients(Rounds):
    """Hooks on every parameter."""

    def __init__(self, packed: Packed, source: Source) -> None:
        super().__init__(packed)
        self._source = source
        self._busy = False  # inside a backward pass that will exchange
        self._fresh = False  # exchanged since the last optimizer.step
        self._launched = 0  # buckets of this round that are on their way
        for bucket, members in zip(packed.buckets, packed.members, strict=True):
            for place, one in enumerate(members):
                hook = one.parameter.register_post_accumulate_grad_hook(self._hook(bucket, place, one))
                self._hooks.append(hook)

    def before_step(self) -> None:
        """Exchange now if no backward pass did, so that a rank without gradients does not stop the others."""
        if not self._fresh and not self.packed.quiet():
            self._begin()
            self._finish()
        self._fresh = False

    def _hook(self, bucket: Bucket, place: int, one: Trained) -> Callable[[torch.Tensor], None]:
        def arrived(p: torch.Tensor) -> None:
            if not self.packed.quiet():
                self._arrived(bucket, place, one)

        return arrived

    def _arrived(self, bucket: Bucket, place: int, one: Trained) -> None:
        """A gradient is complete: take it, and launch what has become full, in the order of the plan."""
        if not self._busy:
            self._busy = True
            self._begin()
            Variable._execution_engine.queue_callback(self._finish)
        if bucket.used[place]:
            raise RuntimeError(
                f"{one.item.name} got its gradient twice in one backward pass; "
                "with activation checkpointing write checkpoint(..., use_reentrant=False)"
            )
        self._fill(bucket, place, one)
        buckets = self.packed.buckets
        while self._launched < len(buckets) and buckets[self._launched].ready:
            self._launch()

    def _begin(self) -> None:
        self.packed.exchanger.events = []
        self._launched = 0

    def _fill(self, bucket: Bucket, place: int, one: Trained) -> None:
        grad = one.parameter.grad
        assert grad is not None
        if grad.is_sparse:
            raise ValueError(f"{one.item.name} has a sparse gradient; write nn.Embedding(..., sparse=False)")
        view = bucket.fill(place, grad)
        if not self.packed.exchanger.warm and self._source.fill(view, one.parameter, one.item.group):
            bucket.changed()
        _adopt(one.parameter, view)

    def _launch(self) -> None:
        bucket = self.packed.buckets[self._launched]
        lr = self.packed.optimizer.param_groups[bucket.items[0].group]["lr"]
        self.packed.exchanger.launch(bucket, float(lr))
        self._launched += 1

    @torch.no_grad()
    def _finish(self) -> None:
        """Backward has ended: launch what is left, with zeros for what has no gradient, and take the results."""
        self._busy = False
        exchanger, buckets = self.packed.exchanger, self.packed.buckets
        mark = Clock(bucket=-1, chunk=-1)
        mark.mark("backward ends")
        exchanger.events += mark.spans
        while self._launched < len(buckets):
            bucket = buckets[self._launched]
            for place, one in enumerate(self.packed.members[self._launched]):
                if one.parameter.grad is None:
                    bucket.views[place].zero_()
                elif not bucket.used[place]:
                    self._fill(bucket, place, one)
            self._launch()
        warm = exchanger.warm
        for bucket, members in zip(buckets, self.packed.members, strict=True):
            used = exchanger.wait(bucket)
            for (p, item), view, anywhere in zip(members, bucket.views, used, strict=True):
                if anywhere:
                    self._take(p, view, GradSource() if warm else self._source, item.group)
        exchanger.end_round()
        self._fresh = True

    def _take(self, p: nn.Parameter, view: torch.Tensor, source: Source, group: int) -> None:
        source.take(view, p, group)
        if not _adopt(p, view):
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(view)


def _adopt(p: nn.Parameter, view: torch.Tensor) -> bool:
    """Make the place in the buffer the gradient itself, as DDP's gradient_as_bucket_view does; whether it can be.

    The results then need no copy, and what autograd had allocated serves the next gradient while still in cache.
    """
    if p.dtype != view.dtype or p.stride() != view.stride():
        return False
    p.grad = view
    return True
