"""Load: what a worker computes in a step, as times: when each gradient is complete, and when the step is over.

They are shared out by operations for a named model (`Load.of`), or measured on this machine (`Load.measured`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
import torch.distributed as dist
from torch import nn

from thinwire.comm.control import of_first
from thinwire.core.config import check_choice
from thinwire.core.given import is_number, is_whole
from thinwire.engine.plan import Item, choose
from thinwire.methods.lags import lags
from thinwire.sim.models import MODELS, Weight
from thinwire.sim.problem import FORWARD
from thinwire.sim.timed import Loss, timed
from thinwire.sync.hiding import Layer


class Ready(NamedTuple):
    """A parameter, and how many seconds after the start of a step its gradient is complete."""

    name: str
    shape: tuple[int, ...]
    seconds: float


@final
@dataclass(frozen=True)
class Load:
    """`tensors` in forward order; backward ends after `computed` seconds, and the optimizer's step takes `update`.

    >>> load = Load.of("resnet50", seconds=0.3)
    >>> load.numel, round(load.tensors[-1].seconds, 3)  # the last layer is ready first, when backward has just begun
    (25557032, 0.1)
    """

    tensors: tuple[Ready, ...]
    computed: float
    update: float = 0.0
    device: str = "cpu"  # where gradients lie, which decides how large buckets are

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ValueError('Load(tensors=()) has nothing to exchange; write Load.of("resnet50")')
        if not isinstance(self.tensors, Sequence) or not all(isinstance(one, Ready) for one in self.tensors):
            raise TypeError(f'Load(tensors={self.tensors!r}): write Load((Ready("fc.weight", (10, 64), 0.1),), 0.3)')
        check_choice("Load", "device", self.device, ("cpu", "cuda"))
        times = [one.seconds for one in self.tensors]
        if not all(map(is_number, (*times, self.computed, self.update))) or max(times) > self.computed:
            raise ValueError(
                f"Load(computed={self.computed!r}, update={self.update!r}): gradients are complete between 0 and "
                f"computed, in seconds; got {min(times)!r} to {max(times)!r}"
            )

    @classmethod
    def of(cls, model: str | Sequence[Weight], seconds: float = 0.1, device: str = "cpu") -> Load:
        """A named model, or a list of weights, of which a step computes for so long, a third of it forward."""
        if not is_number(seconds) or seconds == 0:
            raise ValueError(f"Load.of(seconds={seconds!r}): write how long a step computes, such as seconds=0.1")
        if not isinstance(model, str) and not (
            isinstance(model, Sequence) and all(isinstance(one, Weight) for one in model)
        ):
            raise TypeError(
                f'{type(model).__name__} is neither a name nor a list of weights; write Load.of("resnet50"), or '
                'Load.of([Weight("fc.weight", (10, 64), 1280.0)])'
            )
        weights = MODELS[model]() if isinstance(model, str) else model
        for one in weights:
            if not isinstance(one.shape, tuple) or not all(map(is_whole, one.shape)) or not is_number(one.flops):
                raise ValueError(
                    f'{one!r}: write the shape and the operations, Weight("fc.weight", (10, 64), 1280.0)'
                )
        total = sum(one.flops for one in weights)
        ready, at = [], FORWARD * seconds
        for one in reversed(weights):
            at += (1 - FORWARD) * seconds * one.flops / total if total else 0.0
            ready.append(Ready(one.name, one.shape, min(at, seconds)))
        return cls(tuple(reversed(ready)), seconds, device=device)

    @classmethod
    def measured(cls, model: nn.Module, loss: Loss, steps: int = 10, group: dist.ProcessGroup | None = None) -> Load:
        """The load of a model of your own, as it computes here: a copy of it is trained for some steps.

            model    on the CPU or on one GPU; of DDP's, what it wraps
            loss     of a model, on a batch of the usual size: `lambda net: cross_entropy(net(inputs), targets)`
            steps    that are timed
            group    the ranks that train together; all of the process group, where there is one, unless given

        The model and torch's random numbers stay as they are. In a process group all ranks call this at the same
        time, as they will train, and all get what rank 0 has measured.
        """
        found = timed(model, loss, steps)
        ready = tuple(Ready(name, shape, found.ready[name]) for name, shape in found.shapes.items())
        mine = cls(ready, found.computed, device=found.device.type)
        if not (dist.is_available() and dist.is_initialized()):
            return mine
        tensors, computed, device = of_first([mine.tensors, mine.computed, mine.device], group)
        shared = tuple(Ready(name, tuple(shape), seconds) for name, shape, seconds in tensors)
        return cls(shared, computed, device=device)

    @property
    def numel(self) -> int:
        """Elements of the model."""
        return sum(math.prod(one.shape) for one in self.tensors)

    @property
    def items(self) -> list[Item]:
        """What a bucket plan is made of."""
        device = torch.device(self.device)
        return [Item(one.name, one.shape, device) for one in self.tensors]

    def layers(self, min_size: int | None = None) -> list[Layer]:
        """What backward has still to do after each tensor, for `tw.sync.hidden`.

        Tensors that `attach` with this `min_size` sends uncompressed, when backward ends, are left out.
        """
        if min_size is not None and not is_whole(min_size):
            raise ValueError(f"layers(min_size={min_size!r}): write what attach is given, such as min_size=10_000")
        aside = choose(lags().exchange, self.items, min_size, ()).aside
        sizes = [(one, math.prod(one.shape)) for one in self.tensors if one.name not in aside]
        return [Layer(one.name, numel, self.computed - one.seconds) for one, numel in sizes]
