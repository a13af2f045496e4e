"""Filling: one round of gradients, from the first that is complete to the results of the last bucket.

Whoever hears of complete gradients (hooks on the parameters, or DDP) hands them over one by one. A bucket is launched
when it and all buckets before it in the plan are full, so that every rank launches in the same order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.engine.handover import Handover, follow
from thinwire.engine.local import is_sharded, like, local, same_place
from thinwire.engine.parameters import check_dense
from thinwire.engine.signal import Source

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.agreement import Agreed
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.loop import Loop
    from thinwire.engine.parameters import Trained
    from thinwire.engine.runner import Round

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
    """Fills and launches the buckets of a loop. `block` is what users write to accumulate gradients."""

    def __init__(self, loop: Loop, source: Source, block: str) -> None:
        self._loop, self._source, self._block = loop, source, block
        self.copies = (
            False  # whether a round has a vector of its own, since the buffer is filled again before it ends
        )
        self.looks = False  # whether somebody asks, at the end of the pass, if all of it was finite
        self.flags: list[Callable[[], bool]] = []  # the answers, one per bucket
        self._launched: list[Round] = []  # of this pass
        self._unsent: list[Bucket] = []  # those that it has not launched, the next one last
        self.since_step = 0  # rounds since the last optimizer.step
        self.compares = True  # whether ranks that step are to be told from ranks that do not
        self._warned = False
        self.places = [
            Place(bucket, number, one)
            for bucket, members in zip(loop.buckets, loop.members, strict=True)
            for number, one in enumerate(members)
        ]
        self._by_parameter = {id(place.one.parameter): place for place in self.places}
        self._first = [0, *accumulate(len(bucket.views) for bucket in loop.buckets)]  # place of each bucket's first

    def place(self, parameter: Tensor) -> Place:
        """Where a parameter lies."""
        return self._by_parameter[id(parameter)]

    def succeed(self, old: Filling) -> None:
        """Go on where the filling of other buckets stopped, between two rounds."""
        self.since_step, self._warned, self.compares = old.since_step, old._warned, old.compares

    def begin(self) -> None:
        """Begin a round, whose first gradient has arrived."""
        loop = self._loop
        loop.runner.telemetry.begin()
        self._launched, self.flags, self._unsent = [], [], loop.buckets[::-1]
        for bucket in self._unsent:
            bucket.emptied()
        told = self._warned or loop.skipping.broken or loop.optimizer is None  # whose steps nobody hears of
        if self.since_step and not loop.stepping and not told:
            self._warned = True
            if not loop.elsewhere():  # which has its own warning
                warnings.warn(TWICE.format(times=self.since_step + 1, block=self._block), stacklevel=2)

    def fill(self, place: Place, grad: Tensor) -> Tensor:
        """Take one gradient; returns its place in the buffer."""
        item = place.one.item
        if place.bucket.used[place.number]:
            raise RuntimeError(
                f"{item.name} got its gradient twice in one backward pass; "
                "with activation checkpointing write checkpoint(..., use_reentrant=False)"
            )
        check_dense(grad, item.name)
        view = place.bucket.fill(place.number, grad)
        source = self._source
        if source.changes and not self._loop.runner.warm and source.fill(view, place.one.parameter, item.group):
            place.bucket.changed()
        return view

    @property
    def sent(self) -> int:
        """How many buckets of a pass that has not ended are on their way."""
        return len(self._launched)

    def launch_full(self) -> None:
        """Send the buckets that have become full, in the order of the plan."""
        while self._unsent and not self._unsent[-1].lacks:
            self._launch()

    def launch_rest(self) -> list[Round]:
        """Send the remaining buckets when backward has ended, with zeros for tensors without a gradient.

        Returns all rounds of this pass.
        """
        loop = self._loop
        loop.runner.telemetry.mark("backward ends")
        unsent = {id(bucket) for bucket in self._unsent}
        for place in self.places if unsent else ():
            if id(place.bucket) in unsent and not place.bucket.used[place.number]:
                grad = loop.earlier(place)
                if grad is None:
                    place.bucket.views[place.number].zero_()
                else:
                    self.fill(place, grad)
        while self._unsent:
            self._launch()
        launched, self._launched = self._launched, []
        return launched

    async def results(self, rounds: Sequence[Round]) -> None:
        """Wait round by round, deliver what arrived, and count the round."""
        await self.arrive(rounds)
        self.end()

    async def arrive(self, rounds: Sequence[Round]) -> None:
        """Wait round by round, and deliver what arrived.

        What arrived is checked when all of it is delivered: a GPU still works on it, and no step is taken before.
        Where all ranks raise an error about a round and may go on, the others end first: they write to the buckets.
        """
        self._loop.skipping.broken = False
        left = iter(rounds)
        try:
            for going in left:
                self.deliver(going.bucket, going.x, await self._loop.runner.wait(going))
        except ValueError:
            for going in left:
                with suppress(Exception):  # the first error is told
                    await self._loop.runner.wait(going)
            raise
        self._loop.runner.check(rounds)

    def deliver(self, bucket: Bucket, x: Tensor, agreed: Agreed, *, late: bool = False) -> None:
        """Make gradients of a result, for each tensor that has a gradient on some rank.

        Where results are `late`, this pass may have left this rank's own gradient in the place of one that no rank
        had then; with it replicas would part.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._deliver(bucket, x, agreed, late=late)
        else:  # as under hooks, which say so once for all buckets
            self._deliver(bucket, x, agreed, late=late)

    def _deliver(self, bucket: Bucket, x: Tensor, agreed: Agreed, *, late: bool) -> None:
        loop, source = self._loop, self._source
        changes = source.changes and not loop.runner.warm
        loop.skipping.broken |= agreed.broken > 0
        first, views = self._first[bucket.index], bucket.views if x is bucket.flat else bucket.cut(x)
        for number, (view, anywhere) in enumerate(zip(views, agreed.used, strict=True)):
            if anywhere:
                place = self.places[first + number]
                if changes:
                    source.take(view, place.one.parameter, place.one.item.group)
                loop.deliver(place, view)
            elif late:
                loop.withdraw(self.places[first + number])

    def end(self) -> None:
        """Count the round."""
        self._loop.runner.end_round()
        self.since_step += 1

    def _launch(self) -> None:
        bucket = self._unsent.pop()
        if bucket.streams:
            follow(bucket.streams)  # a model that computes on several has its gradients on several
        if self.looks:
            self.flags.append(_soundness(bucket))
        x = bucket.flat.clone() if self.copies else None
        runner, lr = self._loop.runner, self._loop.lr(bucket.items[0].group)
        since = self.since_step if self.compares and self._loop.optimizer is not None else 0
        self._launched.append(runner.launch(bucket, lr, x=x, since=since, alone=False))
        if not self._unsent:
            runner.agree(self._launched)


def _soundness(bucket: Bucket) -> Callable[[], bool]:
    """Whether what was filled in is finite, for a thread to ask later; a GPU answers then."""
    if bucket.finite is not None:
        known = bucket.finite
        return lambda: known
    flag, handover = bucket.flat.isfinite().all(), Handover(bucket.flat.device)

    def ask() -> bool:
        with handover.work(flag):
            return bool(flag)

    return ask


def adopt(p: torch.nn.Parameter, view: Tensor) -> bool:
    """Make the place in the buffer the gradient itself, as DDP's gradient_as_bucket_view does; False if it cannot be.

    The results then need no copy, and the memory that autograd had allocated serves the next gradient while in cache.
    The gradient is a tensor of its own over that memory: `model.half()` or `p.grad.data = ...` may then give it other
    memory, and the bucket's view stays where it is.
    """
    if p.grad is not None and same_place(p.grad, view):
        return True
    sharded = is_sharded(p)
    if p.dtype != view.dtype or (local(p) if sharded else p).stride() != view.stride():
        return False
    grad = like(p, view.detach()) if sharded else view.detach()
    if grad.device != p.device:  # FSDP keeps the shard on the host, and a DTensor is made where its mesh computes
        return False
    p.grad = grad
    return True
