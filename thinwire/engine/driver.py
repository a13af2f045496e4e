"""Driver: tells the schedule of one worker what happens in its training.

Whoever knows what happens awaits these methods: torch hooks in a real process (`engine/hooks.py`, `engine/ddp.py`),
where waiting blocks the thread, or a training loop on the clock (`engine/virtual.py`), where it takes virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from thinwire.engine import checkpoint
from thinwire.engine.events import (
    AllLaunched,
    BackwardEnds,
    Ends,
    Gradient,
    Idle,
    Overdue,
    Settle,
    StepBegins,
    StepEnds,
)
from thinwire.engine.filling import Place, adopt
from thinwire.engine.life import Life
from thinwire.engine.local import local
from thinwire.engine.parameters import newcomer
from thinwire.engine.schedules.choose import schedule

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.loop import Loop
    from thinwire.engine.plan import Plan
    from thinwire.engine.schedules.base import Schedule


class Driver:
    """On the clock as it is; drivers with hooks derive from it.

    `overdue` says whether a step may come without a backward pass that exchanges.
    """

    overdue = True

    def __init__(self, loop: Loop, own: Schedule) -> None:
        self.loop, self.schedule = loop, own
        self._life = Life(own.run)
        self._passed = 0  # the round before the first backward pass of the step under way
        self._known = {id(one.parameter) for members in loop.members for one in members}
        loop.filled, loop.deliver, loop.earlier = self.filled, self.deliver, self.earlier
        loop.withdraw = self.withdraw

    def filled(self, place: Place, view: Tensor) -> None:
        """A gradient has been copied into `view`, from where it is sent: that becomes the gradient itself."""
        adopt(place.one.parameter, view)

    def deliver(self, place: Place, view: Tensor) -> None:
        """Make what arrived in `view` the gradient, or copy it where the gradient has another form."""
        p = place.one.parameter
        if not adopt(p, view):
            if p.grad is None:
                p.grad = torch.empty_like(p)
            local(p.grad).copy_(view)

    def earlier(self, place: Place) -> Tensor | None:
        """A gradient from an earlier backward pass, to which the present one did not add."""
        grad = place.one.parameter.grad
        return None if grad is None else local(grad)

    def withdraw(self, place: Place) -> None:
        """Take away what this rank computed, where a late result has no gradient in its place."""
        place.one.parameter.grad = None

    async def gradient(self, parameter: Tensor, grad: Tensor) -> None:
        """A gradient is complete."""
        if self.loop.planner is not None and not self.loop.planner.measured.done:
            await self.schedule.backward_begins()
            await self.loop.planner.arrived(self, parameter)
        await self._life.happen(Gradient(self.loop.filling.place(parameter), grad))

    async def renew(self, plan: Plan) -> None:
        """Go on with other buckets, before a round begins; memories stay. Every rank calls it."""
        loop, filling = self.loop, self.loop.filling
        kept = checkpoint.collect(loop.runner, loop.buckets, await self.schedule.save())
        self._life.again()
        loop.lay(plan)
        loop.filling.succeed(filling)
        self.schedule = schedule(loop)
        self._life = Life(self.schedule.run)
        found = await checkpoint.restore(loop.runner, loop.buckets, checkpoint.states_of(kept), on_resize="error")
        self.schedule.load(found.own, resized=False)

    async def backward_ends(self) -> None:
        """No more gradients come in this pass."""
        await self._life.happen(BackwardEnds())

    async def all_launched(self) -> None:
        """Every wire that hears this pass has launched what it had."""
        await self._life.happen(AllLaunched())
        if self.loop.stepping:  # a closure's backward pass: the step has begun already
            self._skip()

    async def step_begins(self, *, closure: bool = False) -> None:
        """The optimizer is about to step; with a `closure` its gradients are yet to be computed."""
        loop = self.loop
        loop.runner.transport.check()  # also where this rank has not waited for others since one of them failed
        loop.check_dtypes()
        if loop.optimizer is not None and (new := newcomer(loop.optimizer, self._known)):
            raise ValueError(f"{new} was added or unfrozen after attach; write wire.detach(), then attach again")
        if self.overdue and not loop.filling.since_step and not closure and not loop.quiet():
            await self._overdue()
        await self._life.happen(StepBegins(closure))
        self._skip()
        loop.stepping = True
        self._passed = loop.runner.round - (not closure)

    async def step_ends(self) -> None:
        """The optimizer has stepped."""
        passes = max(1, self.loop.runner.round - self._passed)  # more than one if a closure was called again
        self.loop.stepping = False
        self.loop.skipping.end()
        self.loop.filling.since_step = 0
        await self._life.happen(StepEnds())
        self.loop.count_step(passes)

    async def shadow(self) -> bool:
        """Take part in the next round with nothing of this rank's own; False when no rank has something left.

        A round of gradients is one of a step without a backward pass.
        """
        loop, method = self.loop, self.loop.method
        loop.idle, loop.others = True, False
        try:
            if method.sync.of.models or method.exchange.served:
                await self._life.happen(Idle())
            else:
                await self._overdue()
        finally:
            loop.idle = False
        return loop.others

    async def settle(self) -> None:
        """All ranks are about to meet elsewhere, or somebody is about to read the parameters."""
        await self.schedule.settle()
        await self._life.happen(Settle())

    async def ends(self) -> None:
        """The wire is closed."""
        await self.schedule.settle()
        await self._life.happen(Ends())

    async def start(self) -> None:
        """Let the schedule run up to its first event."""
        await self._life.start()

    def again(self) -> None:
        """Let the schedule start anew, as if the round that it is in had not begun."""
        self._life.again()

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Let the schedule take up what was saved, and start anew, with ranks that have stepped together."""
        self.loop.filling.since_step = 0
        self._life.again()
        self.schedule.load(saved, resized=resized)

    async def _overdue(self) -> None:
        loop = self.loop
        if loop.planner is not None and not loop.planner.measured.done:
            await self.schedule.backward_begins()
            await loop.planner.arrived(self, None)
        await self._life.happen(Overdue())
        await self._life.happen(AllLaunched())

    def _skip(self) -> None:
        self.loop.skipping.begin(self.loop.runner.round)
