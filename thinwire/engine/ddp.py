"""ddp_hook: the same engine under PyTorch's DistributedDataParallel.

    model = DDP(model)
    model.register_comm_hook(*tw.ddp_hook(tw.methods.qsgd(bits=4), model, optimizer))

DDP says when gradients are complete; thinwire's own plan, the same as under `attach`, says which of them share a
bucket. DDP's buckets change after the first step and differ between torch releases; memories, noise and checkpoints
do not depend on them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire.core.method import Method
from thinwire.engine.filling import Place
from thinwire.engine.hooks import HookDriver
from thinwire.engine.loop import Loop
from thinwire.engine.misuse import (
    check_ddp,
    check_method_type,
    check_no_hook,
    tuple_of,
)
from thinwire.engine.optimizers import check_free, followed
from thinwire.engine.parameters import exchanged_by_ddp
from thinwire.engine.schedules.choose import schedule
from thinwire.engine.settings import Reduction, Settings
from thinwire.engine.skipping import OnNonfinite, check_policy
from thinwire.engine.transport import ProcessTransport
from thinwire.engine.wire import Wire

Hook: TypeAlias = Callable[[Wire, dist.GradBucket], Future[Tensor]]
WITHOUT_DDP = "tw.attach(model.module, optimizer, method), and call model.module in place of the model of DDP"


def ddp_hook(
    method: Method,
    model: DistributedDataParallel,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 600.0,
    on_nonfinite: OnNonfinite = "skip",
    reduce: Reduction = "mean",
) -> tuple[Wire, Hook]:
    """The handle and the hook for `model.register_comm_hook`; every rank calls it with the same arguments.

    The handle does what that of `attach` does. After its `detach` the hook computes a plain mean, or sum, because DDP
    keeps a hook for ever. With the optimizer, or a list of those that share the model, residuals follow learning
    rates, and steps whose gradients are not finite are left out; without it, the learning rate counts as constant,
    and a NaN reaches the optimizer.
    """
    check_method_type(method, "tw.ddp_hook({}, model)")
    check_ddp(model)
    check_no_hook(model)
    settings = Settings(min_size, tuple_of(exclude), seed, timeout, on_nonfinite=on_nonfinite, reduce=reduce)
    return wire_and_hook(method, model, optimizer, settings)


def wire_and_hook(
    method: Method,
    model: DistributedDataParallel,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    settings: Settings,
) -> tuple[Wire, Hook]:
    """As `ddp_hook`, also for a model whose hook hands over to those of several wires, one after the other."""
    single = None if optimizer is None else followed(optimizer, method)
    _check_signal(method, single)
    if single is not None:
        check_free(single)
    check_policy(settings.on_nonfinite)
    members = exchanged_by_ddp(model, single)

    def make(loop: Loop, transport: ProcessTransport) -> HookDriver:
        return DdpDriver(loop, transport, model)

    block = "`with model.no_sync():`"
    group = model.process_group
    return Wire(model.module, single, members, method, group, settings, make, equal=True, block=block), _hook


def _check_signal(method: Method, optimizer: Optimizer | None) -> None:
    if method.sync.batches is not None and optimizer is None:
        raise ValueError(f"{method.id} counts the optimizer's steps; write tw.ddp_hook(method, model, optimizer)")
    if method.overlap.into_forward is not None:
        raise ValueError(
            f"DDP waits for its hook's results when backward ends; write Overlap(into_forward=None), or {WITHOUT_DDP}"
        )
    if method.exchange.served:
        raise ValueError(
            f"{method.id} has a server that keeps the model, but DDP exchanges gradients; write {WITHOUT_DDP}"
        )
    if method.sync.of.models:
        raise ValueError(f"{method.id} exchanges models, but DDP exchanges gradients; write {WITHOUT_DDP}")


@final
class DdpDriver(HookDriver):
    """Takes the gradients that DDP hands over, and delivers all results when it hands over the last bucket."""

    overdue = False  # DDP calls its hook in every backward pass
    delivers_late = True
    syncs_model = True

    def __init__(self, loop: Loop, transport: ProcessTransport, model: DistributedDataParallel) -> None:
        super().__init__(loop, schedule(loop), transport.run)
        loop.filling.compares = False  # under `model.join()` a rank whose loop has ended exchanges and takes no steps
        self._model = weakref.ref(model)  # which has the hook, and with it this driver
        self._group = model.process_group
        self._open = True
        self._run = torch.compiler.disable(self.run)  # a compiled function may call backward
        self._waiting: list[tuple[Future[Tensor], Tensor]] = []  # what DDP waits for, and its buckets
        self._grads: dict[int, Tensor] = {}  # by parameter, where the results go

    async def step_begins(self, *, closure: bool = False) -> None:
        """Refuse to step while DDP does not know of its hook."""
        model = self._model()
        if model is not None and not model._comm_hooks:
            raise ValueError(
                "DDP was not given its hook; write model.register_comm_hook(*tw.ddp_hook(method, model, optimizer))"
            )
        await super().step_begins(closure=closure)

    def filled(self, place: Place, view: Tensor) -> None:
        """DDP keeps its own gradients."""

    def deliver(self, place: Place, view: Tensor) -> None:
        """Copy the result to where DDP looks for it."""
        grad = self._grads.get(id(place.one.parameter))
        if grad is not None:
            grad.copy_(view)

    def withdraw(self, place: Place) -> None:
        """DDP knows no missing gradients, but zeros."""
        grad = self._grads.get(id(place.one.parameter))
        if grad is not None:
            grad.zero_()

    def earlier(self, place: Place) -> Tensor | None:
        """DDP hands over all gradients in every pass."""
        return None

    def check_switch(self, method: Method) -> None:
        """Refuse methods that exchange models."""
        _check_signal(method, self.loop.optimizer)

    def check_no_sync(self) -> None:
        """Refuse the block: DDP looks only at its own."""
        raise ValueError("DDP decides which backward passes exchange; write `with model.no_sync():`")

    def joins(self) -> AbstractContextManager[None]:
        """DDP's own block, which calls the hook with zeros for a rank that has ended."""
        model = self._model()
        assert model is not None
        block: AbstractContextManager[None] = model.join()
        return block

    async def shadow(self) -> bool:
        """DDP has done it."""
        return False

    def close(self) -> None:
        """Let the hook compute a plain mean from here on."""
        super().close()
        self._open = False

    def exchange(self, full: dist.GradBucket) -> Future[Tensor]:
        """Take what DDP has filled. Its futures are done when the last bucket of the round has come back."""
        buffer = full.buffer()
        if not self._open:
            return self._plain_mean(buffer)
        self.end_step()
        done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._waiting.append((done, buffer))
        # Outside a backward pass it is DDP's join that calls, in the name of a rank that has ended.
        self.loop.idle = torch._C._current_graph_task_id() == -1
        try:
            self._run(self._take(full))
        finally:
            self.idle_rounds += self.loop.idle and full.is_last()
            self.loop.idle = False
        return done

    async def _take(self, full: dist.GradBucket) -> None:
        for p, grad in zip(full.parameters(), full.gradients(), strict=True):
            self._grads[id(p)] = grad
            await self.gradient(p, grad)
        if full.is_last():
            await self.backward_ends()
            await self.all_launched()
            waiting, self._waiting, self._grads = self._waiting, [], {}
            for done, buffer in waiting:
                done.set_result(buffer)

    def _plain_mean(self, buffer: Tensor) -> Future[Tensor]:
        if self.loop.times == 1:
            buffer.div_(dist.get_world_size(self._group))
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None
        mean: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return mean


def _hook(state: Wire, bucket: dist.GradBucket) -> Future[Tensor]:
    driver: Any = state._driver
    found: Future[Tensor] = driver.exchange(bucket)
    return found


# DDP compares annotations as objects, but the future import above makes strings of them.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": Future[Tensor]}
