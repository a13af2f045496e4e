"""ddp_hook: the same engine under PyTorch's DistributedDataParallel.

    model = DDP(model)
    model.register_comm_hook(*tw.ddp_hook(tw.methods.qsgd(bits=4), model, optimizer))

DDP says when gradients are complete; thinwire's own plan, the same as under `attach`, says which of them share a
bucket. DDP's buckets change after the first step and differ between torch releases; memories, noise and checkpoints
do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire.core.method import Method
from thinwire.engine.attach import Wire
from thinwire.engine.filling import Filling
from thinwire.engine.misuse import check_free, check_method_type, check_optimizer, tuple_of
from thinwire.engine.parameters import exchanged_by_ddp
from thinwire.engine.rounds import Packed, Rounds
from thinwire.engine.settings import Settings
from thinwire.engine.signal import Source
from thinwire.engine.skipping import OnNonfinite, check_policy
from thinwire.sync.signals import Param

Hook: TypeAlias = Callable[[Wire, dist.GradBucket], Future[Tensor]]


def ddp_hook(
    method: Method,
    model: DistributedDataParallel,
    optimizer: Optimizer | None = None,
    *,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 600.0,
    on_nonfinite: OnNonfinite = "skip",
) -> tuple[Wire, Hook]:
    """The handle and the hook for `model.register_comm_hook`; every rank calls it with the same arguments.

    The handle does what that of `attach` does. After its `detach` the hook computes a plain mean, because DDP keeps
    a hook for ever. With the optimizer, residuals follow its learning rates, and steps whose gradients are not finite
    are left out; without it, the learning rate counts as constant, and a NaN reaches the optimizer.
    """
    check_method_type(method, "tw.ddp_hook({}, model)")
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"ddp_hook takes a model wrapped in DistributedDataParallel; got {type(model).__name__}: "
            "write model = DDP(model), or tw.attach(model, optimizer, method)"
        )
    _check_signal(method)
    if optimizer is not None:
        check_optimizer(optimizer)
        check_free(optimizer)
    check_policy(on_nonfinite)

    def make(packed: Packed, source: Source | None) -> Rounds:
        assert source is not None  # only models have none
        return DdpGradients(packed, source, model.process_group)

    settings = Settings(min_size, tuple_of(exclude), seed, timeout, on_nonfinite=on_nonfinite)
    members = exchanged_by_ddp(model, optimizer)
    return Wire(model.module, optimizer, members, method, model.process_group, settings, make, equal=True), _hook


def _check_signal(method: Method) -> None:
    if isinstance(method.sync.of, Param):
        raise ValueError(
            f"{method.id} exchanges models, but DDP exchanges gradients; write tw.attach(model, optimizer, method)"
        )


@final
class DdpGradients(Rounds):
    """Takes the gradients that DDP hands over, and delivers all results when it hands over the last bucket."""

    def __init__(self, packed: Packed, source: Source, group: dist.ProcessGroup) -> None:
        super().__init__(packed)
        self._filling = Filling(packed, source, "`with model.no_sync():`")
        self._places = {id(place.one.parameter): place for place in self._filling.places}
        self._group = group
        self._open = True
        self._waiting: list[tuple[Future[Tensor], Tensor]] = []  # what DDP waits for, and its buckets
        self._grads: dict[int, Tensor] = {}  # by parameter, where the results go

    def before_step(self, *, closure: bool) -> None:
        """Nothing has to be done: DDP calls its hook in every backward pass."""

    def after_step(self) -> None:
        """The gradients at hand have been used."""
        self._filling.since_step = 0

    def check_switch(self, method: Method) -> None:
        """Refuse methods that exchange models."""
        _check_signal(method)

    def check_no_sync(self) -> None:
        """Refuse the block: DDP looks only at its own."""
        raise ValueError("DDP decides which backward passes exchange; write `with model.no_sync():`")

    def close(self, *, failed: bool = False) -> None:
        """Let the hook compute a plain mean from here on."""
        super().close(failed=failed)
        self._open = False

    @torch.no_grad()
    def exchange(self, full: dist.GradBucket) -> Future[Tensor]:
        """Take what DDP has filled. Its futures are done when the last bucket of the round has come back."""
        buffer = full.buffer()
        if not self._open:
            return self._plain_mean(buffer)
        if not self._waiting:
            self._filling.begin(stepping=self.stepping)
        for p, grad in zip(full.parameters(), full.gradients(), strict=True):
            self._grads[id(p)] = grad
            self._filling.fill(self._places[id(p)], grad)
        self._filling.launch_full()
        done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._waiting.append((done, buffer))
        if full.is_last():
            self._finish()
        return done

    def _finish(self) -> None:
        waiting, grads = self._waiting, self._grads
        self._waiting, self._grads = [], {}
        self._filling.launch_rest(lambda place: None)
        for place, view in self._filling.results():
            grad = grads.get(id(place.one.parameter))
            if grad is not None:
                grad.copy_(view)
        for done, buffer in waiting:
            done.set_result(buffer)
        if self.stepping:
            self.packed.skipping.begin(self.packed.exchanger.round)

    def _plain_mean(self, buffer: Tensor) -> Future[Tensor]:
        buffer.div_(dist.get_world_size(self._group))
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None
        mean: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return mean


def _hook(state: Wire, bucket: dist.GradBucket) -> Future[Tensor]:
    rounds: Any = state._rounds
    found: Future[Tensor] = rounds.exchange(bucket)
    return found


# DDP compares annotations as objects, but the future import above makes strings of them.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": Future[Tensor]}
