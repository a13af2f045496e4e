"""Loop: one worker's training as a schedule sees it, the same under torch hooks, under DDP and on the clock.

    event = await loop.next(Gradient, StepBegins)      the next event of these kinds (engine/events.py)
    going = loop.runner.launch(bucket, ...)            an exchange begins now
    agreed = await loop.runner.wait(going)             and its result is waited for, now or steps later
    loop.runner.check(rounds)                          PayloadError if a GPU has found a damaged payload
    loop.now()                                         the time, which on the clock is virtual

What a schedule must find again after a checkpoint lies in `kept` (plain values) and in the buckets' `extra` (tensors
like their buffers). A schedule may be started anew at any event, and must then go on from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.types import Layout
from thinwire.engine.events import Event, Next
from thinwire.engine.filling import Filling, Place
from thinwire.engine.losses import Losses

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from thinwire.core.clock import Now
    from thinwire.core.method import Method
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.parameters import Trained
    from thinwire.engine.plan import Plan
    from thinwire.engine.planner import Planner
    from thinwire.engine.runner import Runner
    from thinwire.engine.signal import Source
    from thinwire.engine.skipping import Skipping
    from thinwire.engine.transport import Transport


@final
class Loop:
    """What one method works on. `quiet` says whether a no_sync block is open."""

    def __init__(
        self,
        runner: Runner,
        plan: Plan,
        trained: Sequence[Trained],
        optimizer: Optimizer | None,
        skipping: Skipping,
        quiet: Callable[[], bool],
        source: Source,
        block: str,
        buffers: Mapping[str, Tensor],
    ) -> None:
        self.runner, self.trained = runner, trained
        self._dtypes = [p.dtype for p, _ in trained]
        self.optimizer, self.skipping, self.quiet = optimizer, skipping, quiet
        self.buffers = buffers  # of floating point, such as BatchNorm's
        self.losses = Losses()
        self.source, self._block = source, block
        self.lay(plan)
        self.planner: Planner | None = None  # where buckets are planned
        self.kept: dict[str, Any] = {}
        self.stepping = False  # inside optimizer.step
        self.joining = False  # in a block of `Wire.join`, where ranks may end their batches sooner than others
        self.idle = False  # this rank has ended them, and takes part in a round of the others
        self.others = False  # whether some rank still trained in that round
        self.piecemeal = False  # inside a part of a step, which is no step of its own to the optimizer's hooks
        self.again: Callable[[], Awaitable[None]] | None = (
            None  # computes the gradients of this step's batch once more
        )
        # What the driver does with gradients that have been filled in and with results, and earlier gradients.
        self.filled: Callable[[Place, Tensor], None] = _nowhere
        self.deliver: Callable[[Place, Tensor], None] = _nowhere
        self.earlier: Callable[[Place], Tensor | None] = _none
        self.withdraw: Callable[[Place], None] = lambda place: None  # takes a gradient of this rank alone away
        self.elsewhere: Callable[[], bool] = lambda: False  # whether something other than the optimizer steps
        self.hide: Callable[[], None] = lambda: None  # lets nobody see gradients that are under way

    def check_dtypes(self) -> None:
        """Refuse to go on with parameters of another dtype, which replicas would round differently; all are told."""
        for (p, item), dtype in zip(self.trained, self._dtypes, strict=True):
            if p.dtype != dtype:
                now, then = (str(kind).removeprefix("torch.") for kind in (p.dtype, dtype))
                transport = self.runner.transport
                error = ValueError(
                    f"{item.name} is {now} on rank {transport.name(transport.comm.rank)}, and was {then} at attach; "
                    "convert the model before tw.attach, or write wire.detach() and attach again"
                )
                transport.explain(error)
                raise error

    def lay(self, plan: Plan) -> None:
        """Make the buckets of a plan, with memories as `init` leaves them; nothing is under way."""
        by_name = {one.item.name: one for one in self.trained}
        self.plan = plan
        self.buckets = [self.runner.bucket(index, parcel) for index, parcel in enumerate(plan.parcels)]
        self.members = [[by_name[item.name] for item in bucket.items] for bucket in self.buckets]  # as its views
        self.filling = Filling(self, self.source, self._block)

    @property
    def method(self) -> Method:
        """The method in use."""
        return self.runner.method

    @property
    def times(self) -> int:
        """What a mean over ranks is multiplied by."""
        return self.runner.times

    @property
    def transport(self) -> Transport:
        """The way to the other workers."""
        return self.runner.transport

    @property
    def now(self) -> Now:
        """The time in seconds."""
        return self.transport.now

    def next(self, *kinds: type[Event]) -> Next:
        """Wait for the next event of one of these kinds."""
        return Next(kinds)

    def lr(self, group: int) -> float:
        """The learning rate of a parameter group."""
        return 1.0 if self.optimizer is None else float(self.optimizer.param_groups[group]["lr"])

    def count_step(self, passes: int = 1) -> None:
        """An optimizer step has ended, in which DDP would have reduced the gradients of so many backward passes."""
        elements = sum(bucket.layout.numel for bucket in self.buckets)
        self.runner.telemetry.step(passes * elements, max(1, self.method.sync.every))

    def gather(self) -> list[Bucket]:
        """The buckets, filled with the parameters as they are; for schedules whose gradients do not lie there."""
        for bucket, members in zip(self.buckets, self.members, strict=True):
            for view, one in zip(bucket.views, members, strict=True):
                view.copy_(one.local.detach())
            bucket.changed()  # whether it is finite is not known
        return self.buckets

    def models(self) -> list[Tensor]:
        """A copy of the parameters as they are, by bucket."""
        return [torch.cat([one.local.detach().flatten().float() for one in members]) for members in self.members]

    @property
    def layout(self) -> Layout:
        """The tensors of all buckets in one vector."""
        items = [item for bucket in self.buckets for item in bucket.items]
        return Layout(tuple(item.name for item in items), tuple(item.shape for item in items))

    def model(self) -> Tensor:
        """A copy of the parameters as they are, in one vector."""
        return torch.cat(self.models())

    @torch.no_grad()
    def set(self, model: Tensor) -> None:
        """Set the parameters to those of a vector."""
        members = [one for some in self.members for one in some]
        for one, part in zip(members, model.split([one.item.numel for one in members]), strict=True):
            one.local.copy_(part.view(one.item.shape))

    @torch.no_grad()
    def take(self) -> None:
        """Set the parameters to what lies in the buckets."""
        for bucket, members in zip(self.buckets, self.members, strict=True):
            for one, view in zip(members, bucket.views, strict=True):
                one.local.copy_(view)

    def extra(self, *names: str, on_cpu: bool = False) -> None:
        """Give every bucket tensors of these names, like its buffer; they are part of a checkpoint."""
        for bucket in self.buckets:
            device = torch.device("cpu") if on_cpu else bucket.flat.device
            bucket.extra |= {name: torch.zeros_like(bucket.flat, device=device) for name in names}


def _nowhere(place: Place, view: Tensor) -> None:
    """Leave it where it is."""


def _none(place: Place) -> Tensor | None:
    """There are no earlier gradients."""
    return None
