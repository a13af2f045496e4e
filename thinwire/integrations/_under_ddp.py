"""A wire for a model that a framework has put into DistributedDataParallel, whatever the method exchanges.

Gradients travel in DDP's hook. A method that exchanges models leaves gradients alone: DDP is kept in its own
`no_sync`, where it exchanges nothing, and the hooks of `attach` lie on the model inside it.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire.engine.ddp import wire_and_hook
from thinwire.engine.hooks import Hooks
from thinwire.engine.optimizers import check_free
from thinwire.engine.parameters import trained
from thinwire.engine.schedules.choose import schedule
from thinwire.engine.settings import Settings
from thinwire.engine.wire import Wire

if TYPE_CHECKING:
    from thinwire.core.method import Method
    from thinwire.engine.ddp import Hook
    from thinwire.engine.loop import Loop
    from thinwire.engine.transport import ProcessTransport


def bare(optimizer: Any) -> Optimizer:
    """The optimizer of torch inside a framework's wrapper, whose hooks are called when a step is taken."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    assert isinstance(optimizer, Optimizer)
    return optimizer


def uncompiled(model: nn.Module) -> nn.Module:
    """What `torch.compile` has wrapped."""
    inner = getattr(model, "_orig_mod", model)
    assert isinstance(inner, nn.Module)
    return inner


def check_carried(method: Method, framework: str) -> None:
    """Refuse methods for which the loop of a framework leaves no room."""
    write = "write a loop of your own with tw.attach(model, optimizer, method)"
    if method.sync.batches is not None:
        raise ValueError(f"{method.id} says how large batches are, but {framework} does; {write}")
    if method.exchange.served or method.sync.staleness is None:
        raise ValueError(f"{method.id} lets ranks be in different steps, but {framework}'s meet in between; {write}")


def wire_under(
    ddp: DistributedDataParallel, optimizer: Optimizer, method: Method, settings: Settings, *, hook_of: str
) -> Wire:
    """A wire for the model in `ddp`; every rank calls it. `hook_of` is where the user may have given DDP a hook."""
    if method.sync.of.models:
        return _beneath(ddp, optimizer, method, settings)
    seat = _seats.get(ddp)
    if seat is None:
        seat = Seat()
        try:
            ddp.register_comm_hook(seat, _hook)
        except RuntimeError as error:
            raise ValueError(
                f"DDP takes one communication hook, and this one has another ({error}); write {hook_of}"
            ) from error
        _seats[ddp] = seat
    seat.wire, seat.hook = wire_and_hook(method, ddp, optimizer, settings)
    return seat.wire


def mean_of_models(wire: Wire) -> None:
    """Where ranks' models differ, as in the midst of a round of local steps, set each to their mean; all call it."""
    if wire.method.sync.of.models:
        found = wire.consensus()
        if found.distance > 0:
            with torch.no_grad():
                for p, item in wire._trained:
                    p.copy_(found.model[item.name])


@final
class Seat:
    """The wire whose turn it is: DDP keeps a hook for ever, and a model may be trained again with another wire."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.hook: Hook | None = None


_seats: weakref.WeakKeyDictionary[DistributedDataParallel, Seat] = weakref.WeakKeyDictionary()


def _hook(state: Seat, bucket: dist.GradBucket) -> Future[Tensor]:
    if state.wire is None or state.hook is None:  # it was refused, and training goes on without it
        raise ValueError("there is no wire for the hook of this DDP, because making one failed; make the model anew")
    return state.hook(state.wire, bucket)


# DDP compares annotations as objects, but the future import above makes strings of them.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": Future[Tensor]}


def _beneath(ddp: DistributedDataParallel, optimizer: Optimizer, method: Method, settings: Settings) -> Wire:
    check_free(optimizer)
    quiet = _Quiet(ddp)

    def make(loop: Loop, transport: ProcessTransport) -> Hooks:
        return Hooks(loop, schedule(loop), transport.run)

    members, group = trained(ddp.module, optimizer), ddp.process_group
    try:
        wire = Wire(ddp.module, optimizer, members, method, group, settings, make)
    except BaseException:
        quiet.remove()
        raise
    wire._hold(quiet)
    return wire


@final
class _Quiet:
    """Lets DDP exchange neither gradients nor buffers until `remove`."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._block = ExitStack()
        self._block.enter_context(ddp.no_sync())
        ddp.require_forward_param_sync = False  # or the first forward pass would spread the buffers of rank 0

    def remove(self) -> None:
        """Leave the block."""
        self._block.close()
