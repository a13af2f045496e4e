"""Filling: one round of gradients, from the first that is complete to the results of the last bucket.

Whoever hears of complete gradients (hooks on the parameters, or DDP) hands them over one by one. A bucket is launched
when it and all buckets before it in the plan are full, so that every rank launches in the same order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.core.clock import Clock
from thinwire.engine.signal import GradSource, Source

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.bucket import Bucket
    from thinwire.engine.parameters import Trained
    from thinwire.engine.rounds import Packed

TWICE = (
    "gradients have been exchanged {times} times since the last optimizer.step: every backward pass sends them all. "
    "To accumulate gradients, write {block} around all backward passes but the last; if a backward pass also "
    "reaches a model that another optimizer trains, write it around that pass"
)


class Place(NamedTuple):
    """Where a parameter lies in the buckets."""

    bucket: Bucket
    number: int  # of its view in the bucket
    one: Trained


@final
class Filling:
    """Fills, launches and collects the buckets of `packed`. `block` is what users write to accumulate gradients."""

    def __init__(self, packed: Packed, source: Source, block: str) -> None:
        self._packed, self._source, self._block = packed, source, block
        self._launched = 0  # buckets of this round that are on their way
        self.since_step = 0  # rounds since the last optimizer.step
        self._warned = False
        self.places = [
            Place(bucket, number, one)
            for bucket, members in zip(packed.buckets, packed.members, strict=True)
            for number, one in enumerate(members)
        ]

    def begin(self, *, stepping: bool = False) -> None:
        """Begin a round, whose first gradient has arrived."""
        self._packed.exchanger.events = []
        self._launched = 0
        if self.since_step and not stepping and not self._warned and not self._packed.skipping.broken:
            self._warned = True
            warnings.warn(TWICE.format(times=self.since_step + 1, block=self._block), stacklevel=2)

    def fill(self, place: Place, grad: Tensor) -> Tensor:
        """Take one gradient; returns its place in the buffer."""
        item = place.one.item
        if grad.is_sparse:
            raise ValueError(f"{item.name} has a sparse gradient; write nn.Embedding(..., sparse=False)")
        view = place.bucket.fill(place.number, grad)
        if not self._packed.exchanger.warm and self._source.fill(view, place.one.parameter, item.group):
            place.bucket.changed()
        return view

    def launch_full(self) -> None:
        """Send the buckets that have become full, in the order of the plan."""
        buckets = self._packed.buckets
        while self._launched < len(buckets) and buckets[self._launched].ready:
            self._launch()

    def launch_rest(self, grad_of: Callable[[Place], Tensor | None]) -> None:
        """Send the remaining buckets when backward has ended, with zeros for tensors without a gradient."""
        mark = Clock(bucket=-1, chunk=-1)
        mark.mark("backward ends")
        self._packed.exchanger.events += mark.spans
        unsent = {id(bucket) for bucket in self._packed.buckets[self._launched :]}
        for place in self.places:
            if id(place.bucket) in unsent and not place.bucket.used[place.number]:
                grad = grad_of(place)
                if grad is None:
                    place.bucket.views[place.number].zero_()
                else:
                    self.fill(place, grad)
        while self._launched < len(self._packed.buckets):
            self._launch()

    def results(self) -> Iterator[tuple[Place, Tensor]]:
        """Wait bucket by bucket, and yield what arrived for each tensor that has a gradient on some rank."""
        exchanger, skipping = self._packed.exchanger, self._packed.skipping
        source = GradSource() if exchanger.warm else self._source
        places, skipping.broken = iter(self.places), False
        for bucket in self._packed.buckets:
            agreed = exchanger.wait(bucket)
            skipping.broken |= not agreed.finite
            for view, anywhere in zip(bucket.views, agreed.used, strict=True):
                place = next(places)
                if anywhere:
                    source.take(view, place.one.parameter, place.one.item.group)
                    yield place, view
        exchanger.end_round()
        self.since_step += 1

    def _launch(self) -> None:
        bucket = self._packed.buckets[self._launched]
        self._packed.exchanger.launch(bucket, self._packed.lr(bucket.items[0].group))
        self._launched += 1


def adopt(p: torch.nn.Parameter, view: Tensor) -> bool:
    """Make the place in the buffer the gradient itself, as DDP's gradient_as_bucket_view does; False if it cannot be.

    The results then need no copy, and the memory that autograd had allocated serves the next gradient while in cache.
    """
    if p.dtype != view.dtype or p.stride() != view.stride():
        return False
    p.grad = view
    return True
