"""Forward: a step does not wait for its results; in the next forward pass each module waits for its own.

    backward      buckets are launched as it fills them
    step          learning rates are noted, and nothing is waited for
    forward       before a module computes, the results of its buckets become gradients, and its parameters step

Nothing is late: every module computes with the parameters that it would have had. When some gradient is not finite,
no parameter steps, so that the first to step waits for one word from all ranks about all buckets. That word does not
queue behind the buckets.

References: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), MLSys 2019;
Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP 2019.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.engine.agreement import LARGE
from thinwire.engine.events import Gradient, Overdue, StepBegins
from thinwire.engine.piecemeal import NOT_PIECEMEAL, Piecemeal
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.schedules.gradients import launched

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.engine.agreement import Agreed
    from thinwire.engine.filling import Place
    from thinwire.engine.loop import Loop
    from thinwire.engine.round import Round


@final
class Forward(Schedule):
    """`_launched` are the rounds of a pass that no step has followed; `_open` those of the last step, by bucket."""

    hears_gradients = True
    into_forward = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        loop.filling.looks = loop.skipping.policy != "keep"
        self._launched: list[Round] = []
        self._open: dict[int, Round] = {}
        self._ended: dict[Round, Agreed] = {}  # those of them that have been waited for
        self._word: Awaitable[int] | None = None  # what agreements say of all gradients: large, or not finite
        self._step: Piecemeal | None = None
        self._number = 0  # of the step
        self._hidden: list[Tensor] = []  # parameters whose gradients are under way
        self._dropped: set[int] = set()  # those of them whose gradients have been set to None before the step
        self._unread: dict[int, str] = {}  # parameters that no module had waited for when backward began

    @property
    def lacks(self) -> bool:
        """Whether parameters still lack something of the last step."""
        return bool(self._open)

    async def run(self) -> None:
        """Launch what backward computed; a step takes it over."""
        loop = self.loop
        while True:
            event = await loop.next(Gradient, Overdue, StepBegins)
            if isinstance(event, StepBegins):
                await self._step_begins(event)
                continue
            await self.backward_begins()
            self._launched = await launched(loop, event, self._check if self._unread else None)
            if not self._launched:
                continue
            self._word = self._ask()
            loop.filling.end()
            if loop.idle:
                await self._drop(self._word)
                continue
            self._hidden = [p for p, _ in loop.trained if p.grad is not None]
            loop.hide()
            self._unread = {}

    async def save(self) -> dict[str, Any]:
        """Nothing under way is saved."""
        await self.settle()
        return await super().save()

    async def settle(self) -> None:
        """End the last step here, and let the results of a pass that no step has followed become gradients.

        The optimizer takes that step itself then, as it does where steps wait.
        """
        await self.catch_up()
        rounds, self._launched, self._word = self._launched, [], None
        if not rounds:
            return
        dropped = [p for p in self._hidden if p.grad is None]
        self._uncover()
        await self.loop.filling.arrive(rounds)
        for p in dropped:
            p.grad = None

    async def backward_begins(self) -> None:
        """Take what no module has asked for, and leave out a pass that no step followed."""
        if self._open:
            self._unread = {
                id(one.parameter): one.item.name for bucket in self._open for one in self.loop.members[bucket]
            }
            await self.catch_up()
        await self._drop()

    async def catch_up(self, buckets: Collection[int] | None = None) -> None:
        """Let the parameters of these buckets step."""
        wanted = [bucket for bucket in self._open if buckets is None or bucket in buckets]
        if not wanted:
            return
        if self._word is not None:
            level = await self._word
            self._word = None
            if level > LARGE or (level == LARGE and await self._overflows()):
                await self._leave_out()
                return
        for bucket in wanted:
            await self._take(self._open.pop(bucket))

    async def _overflows(self) -> bool:
        """Whether a result is not finite, where numbers are so large that it may be: all are waited for."""
        return any([(await self._wait(going)).broken for going in self._open.values()])

    async def _wait(self, going: Round) -> Agreed:
        """What is known of a round when it has ended, however often it is asked for."""
        if going not in self._ended:
            self._ended[going] = await self.loop.runner.wait(going)
        return self._ended[going]

    async def _take(self, going: Round) -> None:
        loop = self.loop
        agreed = await self._wait(going)
        loop.runner.check([going])
        loop.filling.deliver(going.bucket, going.x, agreed)
        loop.skipping.broken = False
        for one in loop.members[going.bucket.index]:
            if id(one.parameter) in self._dropped:
                one.parameter.grad = None
        assert self._step is not None
        loop.piecemeal = True
        try:
            self._step.take(loop.members[going.bucket.index])
        finally:
            loop.piecemeal = False

    async def _step_begins(self, event: StepBegins) -> None:
        loop = self.loop
        assert loop.optimizer is not None
        if event.closure:
            raise ValueError(f"a closure's gradients are needed at once; {NOT_PIECEMEAL}")
        await self.catch_up()
        if not self._launched:  # inside `no_sync` a step is this rank's own; after `settle` it has its gradients
            return
        self._open, self._ended = {going.bucket.index: going for going in self._launched}, {}
        self._launched, self._number = [], loop.runner.round
        self._step = Piecemeal(loop.optimizer)
        self._dropped = {id(p) for p in self._hidden if p.grad is None}
        self._uncover()

    def _uncover(self) -> None:
        """Take away what stands for gradients under way, since results are not copied into it."""
        for p, _ in self.loop.trained:
            p.grad = None

    async def _leave_out(self) -> None:
        """Some gradient is not finite: nothing steps."""
        skipping = self.loop.skipping
        rounds, self._open = [*self._open.values()], {}
        for going in rounds:
            await self._wait(going)
        if skipping.policy == "raise":
            raise FloatingPointError(f"the gradients of step {self._number} are not finite")
        skipping.skipped += 1

    async def _drop(self, word: Awaitable[int] | None = None) -> None:
        """Wait for rounds whose results nobody wants; what their memories hold is that of a round like any other."""
        if word is not None:
            await word
        rounds, self._launched = self._launched, []
        for going in rounds:
            await self.loop.runner.wait(going)
        self._word = None if rounds else self._word

    def _check(self, place: Place, view: Tensor) -> None:
        name = self._unread.get(id(place.one.parameter))
        if name is not None:
            raise RuntimeError(
                f"{name} was used in this forward pass before its update of the last step had arrived, because no "
                "module that waits for it was called; write Overlap(into_forward=None)"
            )

    def _ask(self) -> Awaitable[int] | None:
        """Ask all ranks whether everything is finite, without waiting for the answer."""
        if self.loop.skipping.policy == "keep":
            return None
        flags = self.loop.filling.flags

        async def ask(comm: Comm) -> int:
            level = max((flag() for flag in flags), default=0)
            return int((await comm.all_reduce(torch.tensor(level, dtype=torch.uint8), op="max")).item())

        return self.loop.transport.launch(ask, aside=True)
