"""Filling: one round of gradients, from the first that is complete to the results of the last bucket.

Whoever hears of complete gradients (hooks on the parameters, or DDP) hands them over one by one. A bucket is launched
when it and all buckets before it in the plan are full, so that every rank launches in the same order.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.engine.agreement import EDITED, RESULT, largest, level
from thinwire.engine.handover import Handover, follow
from thinwire.engine.local import is_sharded, like, local, same_place
from thinwire.engine.parameters import check_dense
from thinwire.engine.signal import Source
from thinwire.kernels.base import TAME

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.agreement import Agreed
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.loop import Loop
    from thinwire.engine.parameters import Trained
    from thinwire.engine.round import Round

TWICE = (
    "{count:,} of {all:,} elements have been exchanged again since the last optimizer.step: a backward pass sends "
    "every bucket that it changes. To accumulate gradients, write {block} around all backward passes but the last; "
    "if a backward pass also reaches a model that another optimizer trains, write it around that pass"
)
TWICE_SUMMED = (
    "{name} was summed over ranks when an earlier backward pass ended, and this pass adds to the sum; with "
    "reduce='sum' write {block} around all backward passes of a step but the last that reaches it"
)

TWICE_JOINED = (
    "in a `with wire.join():` block a step has one backward pass that exchanges, because ranks that have ended their "
    "batches do not know of a second; write {block} around all backward passes of a step but the last"
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
        self.flags: list[Callable[[], int]] = []  # the answers, one per bucket, as agreements give them
        self._launched: list[Round] = []  # of this pass
        self._unsent: list[Bucket] = []  # those that it has not launched, the next one last
        self.since_step = 0  # rounds since the last optimizer.step
        self.compares = True  # whether ranks that step are to be told from ranks that do not
        # Of backward passes between two steps: what the last round of each bucket has left there, as (whether each
        # tensor is a result, version of the buffer); what has been added to since; by the pass, buckets without news.
        self._left: dict[int, tuple[tuple[bool, ...], int]] = {}
        self._touched: set[int] = set()
        self._idle: defaultdict[int, set[int]] = defaultdict(set)
        self._warned = self._excused = False
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
        loop.check_dtypes()
        loop.runner.telemetry.begin()
        self._launched, self.flags, self._unsent = [], [], loop.buckets[::-1]
        for bucket in self._unsent:
            bucket.emptied()
        self._excused = loop.idle or loop.skipping.broken or loop.optimizer is None  # whose steps nobody hears of
        if not self.since_step:
            self._left, self._touched = {}, set()
        elif loop.joining and not (self._excused or loop.stepping):
            raise RuntimeError(TWICE_JOINED.format(block=self._block))

    def fill(self, place: Place, grad: Tensor) -> Tensor:
        """Take one gradient; returns its place in the buffer."""
        item = place.one.item
        if place.bucket.used[place.number]:
            raise RuntimeError(
                f"{item.name} got its gradient twice in one backward pass; "
                "with activation checkpointing write checkpoint(..., use_reentrant=False)"
            )
        check_dense(grad, item.name)
        if self._loop.times > 1:
            self._check_sum(place, grad)
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
                grad = None if loop.idle else loop.earlier(place)
                if grad is None:
                    place.bucket.views[place.number].zero_()
                elif self._is_result(place) and id(place.one.parameter) not in self._touched:
                    self._keep(place, grad)
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
        self._note(rounds)
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

    async def others_train(self, rounds: Sequence[Round]) -> bool:
        """Whether some rank still trains, where this one does not. If none does, the rounds of this pass end here."""
        for going in rounds:
            if going.agreement is not None:
                await going.agreement
        self._loop.others = any(going.agreed.trains for going in rounds)
        if not self._loop.others:
            for going in rounds:
                await self._loop.runner.wait(going)
        return self._loop.others

    def _deliver(self, bucket: Bucket, x: Tensor, agreed: Agreed, *, late: bool) -> None:
        loop, source = self._loop, self._source
        if loop.idle:
            return  # at the end of the block this rank gets all of it from a rank that trained to the last
        changes = source.changes and not loop.runner.warm
        loop.skipping.broken |= agreed.broken > 0
        if not agreed.news:
            if late:
                for number in range(len(bucket.views)):
                    loop.withdraw(self.places[self._first[bucket.index] + number])
            return  # every gradient is what it was
        first, views = self._first[bucket.index], bucket.views if x is bucket.flat else bucket.cut(x)
        again = agreed.again if loop.times > 1 else ()
        if loop.times > 1 and not (changes or any(again)):
            x.mul_(loop.times)
        for number, (view, anywhere) in enumerate(zip(views, agreed.used, strict=True)):
            if anywhere:
                place = self.places[first + number]
                if changes:
                    source.take(view, place.one.parameter, place.one.item.group)
                if loop.times > 1 and (changes or any(again)) and not again[number]:
                    view.mul_(loop.times)
                loop.deliver(place, view)
            elif late:
                loop.withdraw(self.places[first + number])

    def touched(self, parameter: Tensor) -> None:
        """Note that something was added to a gradient in a pass that exchanges nothing."""
        self._touched.add(id(parameter))

    def _is_result(self, place: Place) -> bool:
        """Whether a round since the last step has left its result there, be it that something was added to it."""
        used, _ = self._left.get(place.bucket.index, ((), 0))
        return bool(used) and used[place.number] and not self._source.changes

    def _keep(self, place: Place, grad: Tensor) -> None:
        """Let a result that nothing was added to lie where it is: it only travels if its bucket has something new."""
        bucket, (_, version) = place.bucket, self._left[place.bucket.index]
        same = same_place(grad, bucket.views[place.number]) and bucket.flat._version == version
        bucket.fill(place.number, grad)
        bucket.used[place.number] = RESULT if same else EDITED

    def _check_sum(self, place: Place, grad: Tensor) -> None:
        """Refuse to add to a sum over ranks; a gradient that was set to None in between is another tensor now."""
        view = place.bucket.views[place.number]
        kept = same_place(grad, view) or grad.dtype != view.dtype
        if kept and self._is_result(place) and self.compares and not self._loop.stepping:
            raise RuntimeError(TWICE_SUMMED.format(name=place.one.item.name, block=self._block))

    def _note(self, rounds: Sequence[Round]) -> None:
        """Remember what these rounds have left, and count what has travelled before since the last step."""
        loop, again, news = self._loop, 0, 0
        for going in rounds:
            bucket, (used, _) = going.bucket, self._left.get(going.bucket.index, ((), 0))
            again += bucket.layout.numel if used and not going.skipped else 0
            if going.agreed.news:
                news += bucket.layout.numel if used else 0
                self._idle[going.since].discard(bucket.index)
                used = going.agreed.used
            else:
                self._idle[going.since].add(bucket.index)
            if used:
                self._left[bucket.index] = used, bucket.flat._version
        loop.runner.telemetry.stats.again += again
        if news and not (self._warned or self._excused or loop.stepping):
            self._warned = True
            if not loop.elsewhere():  # which has its own warning
                total = sum(bucket.layout.numel for bucket in loop.buckets)
                warnings.warn(TWICE.format(count=news, all=total, block=self._block), stacklevel=2)

    def end(self) -> None:
        """Count the round."""
        self._loop.runner.end_round()
        self.since_step += not self._loop.idle
        if self._loop.optimizer is None and not self._loop.idle:  # whose steps nobody hears of
            self._loop.count_step()

    def _launch(self) -> None:
        bucket, runner = self._unsent.pop(), self._loop.runner
        if bucket.streams:
            follow(bucket.streams)  # a model that computes on several has its gradients on several
        if self.looks:
            self.flags.append(_look(bucket, (runner.plain if runner.warm else bucket.exchange).limit))
        x = bucket.flat.clone() if self.copies else None
        lr = self._loop.lr(bucket.items[0].group)
        since = self.since_step if self.compares and self._loop.optimizer is not None else 0
        idle, joining = self._loop.idle, self._loop.joining  # there, those that are idle do not know which pass it is
        patient = not joining and bucket.index in self._idle[since]
        self._launched.append(runner.launch(bucket, lr, x=x, since=since, alone=False, patient=patient, idle=idle))
        if not self._unsent:
            runner.agree(self._launched)


def _look(bucket: Bucket, limit: float) -> Callable[[], int]:
    """What agreements say of the numbers that were filled in, for a thread to ask later; a GPU answers then."""
    heavy = any(chunk.heavy for chunk in bucket.chunks)
    if (bucket.tame and limit >= TAME) or not bucket.flat.numel():
        return lambda: level(0.0, limit, heavy=heavy)
    if not bucket.flat.is_cuda:
        top = largest(bucket.flat)
        return lambda: level(top, limit, heavy=heavy)
    norm, handover = torch.linalg.vector_norm(bucket.flat, torch.inf), Handover(bucket.flat.device)

    def ask() -> int:
        with handover.work(norm):
            return level(float(norm), limit, heavy=heavy)

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
