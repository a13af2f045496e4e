"""Builder: makes what one method works with, when a wire begins and when it switches to another method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import torch.distributed as dist

from thinwire.engine.averages import check_tested_model, may_keep_points
from thinwire.engine.handshake import Fields
from thinwire.engine.legal import check_method
from thinwire.engine.loop import Loop
from thinwire.engine.meet import meet
from thinwire.engine.misuse import check_surroundings
from thinwire.engine.plan import announce, plan_of
from thinwire.engine.planner import planner
from thinwire.engine.signal import source
from thinwire.engine.skipping import Skipping

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from thinwire.core.method import Method
    from thinwire.engine.hooks import HookDriver, MakeDriver
    from thinwire.engine.parameters import Trained
    from thinwire.engine.runner import Runner
    from thinwire.engine.settings import Settings
    from thinwire.engine.share import Share
    from thinwire.engine.transport import ProcessTransport


class Built(NamedTuple):
    """What one method works with."""

    transport: ProcessTransport
    runner: Runner
    loop: Loop
    driver: HookDriver


@final
@dataclass(frozen=True)
class Builder:
    """What is the same for all methods of a wire."""

    optimizer: Optimizer | None
    members: list[Trained]
    buffers: Mapping[str, Tensor]
    tensors: Callable[[], Mapping[str, str]]  # what ranks compare of the model
    group: dist.ProcessGroup
    settings: Settings
    share: Share
    make_driver: MakeDriver
    quiet: Callable[[], bool]  # whether a no_sync block is open
    block: str  # what users write to accumulate gradients

    def build(self, method: Method, seed: int) -> Built:
        """Make the plan, the transport, the buckets and the hooks for `method`, after a handshake."""
        settings = self.settings
        check_surroundings()
        self.share.check(method)
        ranks = dist.get_world_size(self.group)
        check_method(method, ranks, drop_dead=settings.drop_dead, sums=settings.reduce == "sum")
        check_tested_model(method, self.optimizer)
        signal = source(method.sync.of, self.optimizer)
        items = [item for _, item in self.members]
        kinds = sorted({item.device.type for item in items})
        plan = plan_of(method, items, settings.min_size, settings.exclude)
        fields: Fields = {
            "the tensors of the model": self.tensors(),
            "the order of parameters": str([item.name for item in items]),
            "plan": str(plan),
            "sizes of the pieces": str({kind: method.overlap.sizes(kind) for kind in kinds}),
            "on_nonfinite": settings.on_nonfinite,
            "reduce": settings.reduce,
            "what they hold of the model": self.share.name,
            "whether optimizers may keep points beside parameters": str(may_keep_points(self.optimizer)),
        }
        lanes = max(method.lanes(kind) for kind in kinds)
        transport, runner = meet(method, self.group, settings, seed, fields, self.optimizer, lanes)
        if transport.comm.rank == 0 and transport.comm.size > 1 and self.share.speaks:
            announce(plan, settings.min_size, settings.exclude)
        loop = Loop(
            runner,
            plan,
            self.members,
            self.optimizer,
            Skipping(self.optimizer, settings.on_nonfinite, self.share.agree),
            self.quiet,
            signal,
            self.block,
            self.buffers,
        )
        runner.times = ranks if settings.reduce == "sum" else 1
        loop.planner = planner(method, items, settings.min_size, settings.exclude)
        return Built(transport, runner, loop, self.make_driver(loop, transport))
