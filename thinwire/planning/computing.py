"""Computing: how long a step takes without communication, and when in it each gradient is complete.

The model trains on one batch, on this machine, a few steps long. Hooks note when autograd has completed each
gradient, in the time of the device that computes it; all times are medians, counted from the start of the step. On
the CPU the loop waits after backward, as it would for an exchange, and the wait does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.engine.parameters import Trained, check_dense, trained
from thinwire.planning.pause import SECONDS, Pause

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from thinwire.engine.plan import Item
    from thinwire.planning.company import Company
    from thinwire.planning.device import Device

WARM = 3  # steps that are not timed
STEPS = 15
Step = Callable[[], None]
Makes = Callable[["nn.Module"], tuple[Step, "Optimizer"]]  # what a step is, for a model, and its optimizer


@final
@dataclass(frozen=True)
class Computing:
    """Of one rank. `ready` are seconds into the step, by item; `steps` are whole steps, without communication."""

    items: tuple[Item, ...]
    ready: tuple[float, ...]
    backward: float  # when backward ends, seconds into the step
    steps: tuple[float, ...]
    cores: float = 1.0  # kept busy by a step, of those that this rank has
    share: float = 1.0  # cores that this rank has: those of the machine, divided among the ranks on it

    def __post_init__(self) -> None:
        if len(self.items) != len(self.ready) or not self.items or not self.steps:
            raise ValueError(
                "Computing takes a time for each item, and a step; write Computing(items, ready, 0.1, [0.2])"
            )
        if min(self.steps) <= 0 or not all(0 <= at <= self.backward for at in self.ready):
            raise ValueError(
                "gradients are ready within backward, and steps take time; see thinwire.planning.Computing"
            )

    def slowest(self, steps: Sequence[float]) -> Computing:
        """With the steps of the slowest rank, and everything in them as much later as these are longer."""
        later = median(steps) / self.step
        ready = tuple(later * at for at in self.ready)
        return replace(self, ready=ready, backward=max(later * self.backward, *ready), steps=tuple(steps))

    @property
    def step(self) -> float:
        """The median of whole steps."""
        return median(self.steps)

    @property
    def elements(self) -> int:
        """Of the whole gradient."""
        return sum(item.numel for item in self.items)


def measure(model: nn.Module, makes: Makes, *, company: Company, device: Device, steps: int = STEPS) -> Computing:
    """Train `model`, which is changed by it, and watch. Ranks on one machine take their steps at the same time.

    A step of `makes` ends when its work is done; moments in it are read after that.
    """
    step, optimizer = makes(model)
    members = trained(model, optimizer)
    last: dict[int, Any] = {}  # moments of the step under way, by parameter; the end of backward is at 0
    hooks = [_watch(one, last, device) for one in members]
    hooks.append(optimizer.register_step_pre_hook(lambda *_: last.__setitem__(0, device.moment())))
    pause = Pause(0.0 if device.queued else SECONDS)
    hooks.append(optimizer.register_step_pre_hook(pause))
    ready: dict[int, list[float]] = {0: [], **{id(one.parameter): [] for one in members}}
    times, busy = [], 0.0
    try:
        for number in range(WARM + steps):
            last.clear()
            company.in_step()
            start, wall, cpu = device.moment(), time.perf_counter(), time.process_time()
            step()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            cpu -= pause.cpu
            wall -= pause.taken()
            if number < WARM:
                continue
            times.append(wall)
            busy += cpu
            for which, moment in last.items():
                ready[which].append(device.between(start, moment))
    finally:
        for hook in hooks:
            hook.remove()
    unused = [one.item.name for one in members if not ready[id(one.parameter)]]
    if unused:
        raise ValueError(
            f"{unused[0]} got no gradient from the sample batch; freeze it, or give a batch that uses it"
        )
    for one in members:
        check_dense(one.parameter.grad, one.item.name)
    share = device.share(company)
    end = min(median(ready[0]), median(times))
    found = tuple(min(end, max(0.0, median(ready[id(one.parameter)]))) for one in members)
    cores = min(max(device.cores(busy / sum(times)), 0.05), max(share, 0.05))
    return Computing(tuple(one.item for one in members), found, end, tuple(times), cores, share)


def _watch(one: Trained, last: dict[int, Any], device: Device) -> Any:
    which = id(one.parameter)
    return one.parameter.register_post_accumulate_grad_hook(lambda _: last.__setitem__(which, device.moment()))


def gradients(model: nn.Module, items: Sequence[Item]) -> dict[str, torch.Tensor]:
    """The gradients that the last step left, as vectors by name."""
    names = {item.name for item in items}
    return {
        name: p.grad.detach().flatten().float()
        for name, p in model.named_parameters()
        if name in names and p.grad is not None
    }
