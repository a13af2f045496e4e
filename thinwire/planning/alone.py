"""Alone: what DDP, its hooks and the engine cost one rank that has nobody to talk to.

Each wraps a copy of the model in a process group of this rank alone, where sums take no time, and takes turns with a
model that nothing wraps. The difference is what it computes and copies besides training.
"""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import TYPE_CHECKING

import torch.distributed as dist

from thinwire.engine.attach import attach
from thinwire.methods.sgd import sgd
from thinwire.planning.rivals import RIVALS

if TYPE_CHECKING:
    from torch import nn

    from thinwire.planning.computing import Makes, Step

WARM, TURNS, BLOCK = 4, 4, 3  # PowerSGD begins with the third step
ENGINE = "engine"  # of thinwire, with a method that does not compress
Build = Callable[["nn.Module", "Makes", dist.ProcessGroup], AbstractContextManager["Step"]]


@contextmanager
def own_group() -> Iterator[dist.ProcessGroup]:
    """A gloo group of this rank alone; torch.distributed is initialised for as long as this takes, if it is not."""
    if dist.is_initialized():
        yield dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert group is not None
        yield group
    finally:
        dist.destroy_process_group()


def overheads(model: nn.Module, makes: Makes) -> dict[str, float]:
    """Seconds per step that each of DDP's ways, and the engine, add to a step without communication."""
    builds: dict[str, Build] = {name: _wrapped(rival.wrap) for name, rival in RIVALS.items()}
    builds[ENGINE] = _attached
    found = {}
    with own_group() as group:
        bare, _ = makes(copy.deepcopy(model))
        for name, build in builds.items():
            with build(copy.deepcopy(model), makes, group) as step:
                found[name] = max(0.0, _difference(bare, step))
            gc.collect()  # DDP is part of a cycle, and as large as the model
    return found


def _wrapped(wrap: Callable[[nn.Module, dist.ProcessGroup], nn.Module]) -> Build:
    @contextmanager
    def build(net: nn.Module, makes: Makes, group: dist.ProcessGroup) -> Iterator[Step]:
        step, _ = makes(wrap(net, group))
        yield step

    return build


@contextmanager
def _attached(net: nn.Module, makes: Makes, group: dist.ProcessGroup) -> Iterator[Step]:
    step, optimizer = makes(net)
    with attach(net, optimizer, sgd(), process_group=group):
        yield step


def _difference(one: Step, other: Step) -> float:
    """How much longer the other step takes."""
    times: dict[Step, list[float]] = {one: [], other: []}
    for step in times:
        for _ in range(WARM):
            step()
    for _ in range(TURNS):
        for step, taken in times.items():
            for _ in range(BLOCK):
                start = time.perf_counter()
                step()
                taken.append(time.perf_counter() - start)
    return median(times[other]) - median(times[one])
