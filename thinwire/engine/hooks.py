"""Hooks: the driver of `attach`. Hooks on parameters and on the optimizer tell the schedule what happens.

Several wires may hear the same backward pass. When it ends, each of them first launches what it has left, and only
then does any of them wait, so that no rank waits in one wire for what another rank sends after waiting in the other.
An error in one of them is raised when the others have ended their rounds.

Where a compiled function calls `step` or `backward`, torch would compile the hooks as well; it is told not to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, final

import torch
from torch.autograd import Variable
from torch.optim import LBFGS

from thinwire.engine.accumulated import move_last, when_accumulated
from thinwire.engine.averages import averages_points, may_keep_points, refuse_points
from thinwire.engine.driver import Driver
from thinwire.engine.local import gradient
from thinwire.engine.needs import Needs
from thinwire.engine.schedules.choose import schedule as schedule_of
from thinwire.engine.stepping import Steps
from thinwire.engine.underway import Hidden
from thinwire.optim.joined import Joined
from thinwire.optim.step_hooks import on_step

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from thinwire.core.method import Method
    from thinwire.engine.loop import Loop
    from thinwire.engine.schedules.base import Schedule
    from thinwire.engine.transport import ProcessTransport


class Removable(Protocol):
    """A hook's handle."""

    def remove(self) -> None:
        """Take the hook away."""


class HookDriver(Driver):
    """Base of the drivers in a real process: the hooks on the optimizer. `close` removes all hooks.

    `delivers_late` says that results become gradients when the backward pass has ended, and not before.
    """

    delivers_late = False
    syncs_model = False  # whether `joins` leaves all ranks with one model

    def __init__(self, loop: Loop, schedule: Schedule, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        super().__init__(loop, schedule)
        self._blocking = run
        self._hooks: list[Removable] = []
        self._refuses_points = False  # that an optimizer keeps beside the parameters
        self.idle_rounds = 0  # of the others, in which this rank took part since `joins`
        self.steps: Steps | None = None  # of the optimizer, where it is known
        if loop.optimizer is not None:
            self.steps = Steps(loop.optimizer, loop.trained)  # its hooks come before those that take gradients
            loop.elsewhere = self.steps.elsewhere
            self._refuses_points = may_keep_points(loop.optimizer) and not averages_points(loop.method)
            self._hooks = [
                self.steps,
                *on_step(loop.optimizer, self._step_begins, self._step_ends),
            ]

    def check_switch(self, method: Method) -> None:
        """Raise ValueError where another method cannot take over."""

    def check_no_sync(self) -> None:
        """Raise ValueError if `Wire.no_sync` has no meaning."""

    def joins(self) -> AbstractContextManager[None]:
        """What a block of `Wire.join` is inside."""
        return nullcontext()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Let the schedule take up what was saved, with the model that it keeps."""
        if self.steps is not None:
            self.steps.forget()
        super().load(saved, resized=resized)

    def end_step(self) -> None:
        """A backward pass begins: a step that only some of several optimizers have taken is over."""
        if self.loop.stepping and isinstance(self.loop.optimizer, Joined):
            self.loop.optimizer.finish()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Let the schedule act, and wait here for what it waits for."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._blocking(coroutine)
        else:  # as in most backward passes, where this runs once per parameter
            self._blocking(coroutine)

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """A schedule that takes closures has its gradients now, and the optimizer is then given the loss alone.

        Where a step is left out by looking at its gradients as it begins, a closure computes them now, too; the
        optimizer's first call finds them computed. An optimizer that compares losses is given their mean over ranks.
        """
        if self.loop.piecemeal:
            return None
        closure = next(iter([*args[1:], *kwargs.values()]), None)
        method = self.loop.method
        together = not method.sync.of.models and not method.exchange.served  # all ranks take one step
        compares = together and isinstance(optimizer, LBFGS)
        if closure is not None and compares:
            closure = self._with_mean_loss(closure)
        self.loop.again = None
        before = self.schedule.takes_closures or self.schedule.looks_at_gradients or self.delivers_late
        if closure is None or not before:
            self.run(self.step_begins(closure=closure is not None))
            return ((args[0], closure), {}) if closure is not None and compares else None

        async def again() -> None:
            with torch.enable_grad():
                closure()

        with torch.enable_grad():
            loss = closure()
        if self.schedule.takes_closures:
            self.loop.again = again
            self.run(self.step_begins())
            return (args[0], lambda: loss), {}
        self.run(self.step_begins())
        computed = [loss]
        return (args[0], lambda: computed.pop() if computed else closure()), {}

    def _with_mean_loss(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure that every rank gets the same loss from.

        With its own loss each rank would search along the line by itself, call the closure another number of times,
        and take another step: replicas would part, and exchange gradients of different points.
        """

        def mean() -> Any:
            loss = torch.as_tensor(closure())
            found = loss.detach().float().reshape(1).clone()  # the user may keep the loss

            async def average() -> None:
                found.copy_(await self.loop.runner.average(found))

            if not self.loop.quiet():
                self.run(average())
            return found.reshape(loss.shape)

        return mean

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.loop.piecemeal:
            return
        if self._refuses_points and self.steps is not None and self.steps.count == 1:
            refuse_points(self.loop.method, self.loop.optimizer, self.loop.trained)
        self.run(self.step_ends())


@final
class Hooks(HookDriver):
    """Hooks on every parameter, where the schedule hears of gradients."""

    def __init__(
        self,
        loop: Loop,
        schedule: Schedule,
        run: Callable[[Coroutine[Any, Any, None]], None],
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(loop, schedule, run)
        self._pass: weakref.ref[Any] | None = None  # what ends the backward pass that exchanges, while there is one
        self._incomplete: list[tuple[Tensor, int]] = []  # parameters whose hooks have not all run, and the one here
        self._ends, self._waits = (torch.compiler.disable(one) for one in (self._backward_ends, self._all_launched))
        if schedule.hears_gradients:
            told = weakref.WeakMethod(self.accumulated)
            self._hooks += [when_accumulated(place.one.parameter, told) for place in loop.filling.places]
        self._needs: Needs | None = None
        if schedule.into_forward:
            assert model is not None, "only attach lets results arrive in the forward pass"
            self._needs = Needs(
                model,
                loop.trained,
                loop.optimizer,
                weakref.WeakMethod(self._arrive),
                weakref.WeakMethod(self._lacks),
            )
            self._hooks.append(self._needs)
            loop.hide = Hidden(loop.trained).hide

    def _lacks(self) -> bool:
        """Whether parameters lack something of the last step."""
        return self.schedule.lacks

    def _arrive(self, parameters: Collection[Tensor] | None) -> None:
        """Somebody is about to read these parameters, or all."""
        if self.schedule.lacks:
            place = self.loop.filling.place
            buckets = None if parameters is None else {place(p).bucket.index for p in parameters}
            kinds = {p.device.type for p, _ in self.loop.trained}
            with ExitStack() as around:  # whatever the forward pass runs in, the optimizer steps as outside it
                around.enter_context(torch.inference_mode(mode=False))
                for kind in kinds:
                    around.enter_context(torch.autocast(kind, enabled=False))
                self.run(self.schedule.catch_up(buckets))

    def accumulated(self, p: Tensor, early: int | None) -> None:
        """Take a gradient, now or when this pass ends."""
        self.end_step()
        if self.loop.quiet():
            self.loop.filling.touched(p)
            return
        self._forget_failed_pass()
        if self._pass is None:
            ends = partial(self._ends)  # an object of this pass
            self._pass, self._incomplete = weakref.ref(ends), []
            Variable._execution_engine.queue_callback(ends)
        if early is not None:
            self._incomplete.append((p, early))
            return
        try:
            self._take(p)
        except BaseException:
            self._pass = None  # torch forgets the callback
            raise

    def _take(self, p: Tensor) -> None:
        """Take a gradient that is complete."""
        if p.grad is None:
            name = self.loop.filling.place(p).one.item.name
            raise RuntimeError(
                f"a hook on {name} has set its gradient to None before it could be exchanged; remove the hook, and "
                "write optimizer.step() in the training loop"
            )
        self.run(self.gradient(p, gradient(p)))

    def _forget_failed_pass(self) -> None:
        """Begin the round anew if an exception ended the last pass.

        Torch alone holds what is called at a pass's end, and drops it with a pass that fails. A pass inside another,
        as of a checkpoint, is a part of that one, whose end torch still holds.
        """
        if self._pass is None or self._pass() is not None:
            return
        if sent := self.loop.filling.sent:
            raise RuntimeError(
                f"an exception ended the last backward pass when {sent} of {len(self.loop.buckets)} buckets were on "
                "their way, and the other ranks wait for the rest; let it leave the `with` block of tw.attach or the "
                "script, so that they are told, and go on from a checkpoint"
            )
        self._pass = None
        self.again()

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if not self.loop.piecemeal:
            self._forget_failed_pass()
        return super()._step_begins(optimizer, args, kwargs)

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        super()._step_ends(optimizer, args, kwargs)
        if self._needs is not None and not self.loop.piecemeal:
            self._needs.stepped()

    def _backward_ends(self) -> None:
        """Run at the end of backward. The callback that is queued here runs after those of all other wires."""
        self._pass = None
        with _raising_last():
            for p, hook in self._incomplete:
                move_last(p, hook)
                self._take(p)
            self.run(self.backward_ends())
            Variable._execution_engine.queue_callback(self._waits)

    def _all_launched(self) -> None:
        with _raising_last():
            self.run(self.all_launched())


MakeDriver: TypeAlias = Callable[["Loop", "ProcessTransport"], HookDriver]


def by_hooks(model: nn.Module, loop: Loop, transport: ProcessTransport) -> HookDriver:
    """Hooks on the parameters and on the optimizer, and on modules where steps end in the forward pass."""
    return Hooks(loop, schedule_of(loop), transport.run, model)


@contextmanager
def _raising_last() -> Iterator[None]:
    """Raise an error of the block when nothing else is to be called at the end of this pass: torch would drop that.

    What another wire still launches is followed by its wait, so the error is queued once more behind both.
    """
    try:
        yield
    except Exception as error:
        queue, failed = Variable._execution_engine.queue_callback, error

        def tell() -> NoReturn:
            raise failed

        queue(lambda: queue(tell))
