"""Alone: what DDP, its hooks and the engine cost one rank besides sending.

Each wraps a copy of the model in a process group of this rank alone, where sums take no time, and takes turns with a
model that nothing wraps. The difference is what it computes and copies besides training. Ranks that share a machine
do so in step: each step starts when all of them are there, sums wait for all of them, and the slowest counts. All
pause in every step, as they would wait for an exchange. The engine exchanges nothing: codecs are timed apart.
"""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

import torch.distributed as dist

from thinwire.core.method import Method
from thinwire.engine.attach import attach
from thinwire.planning.beat import Beat
from thinwire.planning.company import Company
from thinwire.planning.pause import SECONDS, Idle, Pause
from thinwire.planning.rivals import RIVALS, possible

if TYPE_CHECKING:
    from torch import nn

    from thinwire.planning.computing import Makes, Step

WARM, TURNS, BLOCK = 8, 3, 6  # PowerSGD begins with the third step; the first of a block finds cold caches
LARGE = 1 << 18  # parameters of a model whose copies are worth looking for
ENGINE = "engine"  # of thinwire, without what is exchanged
BASE = "ddp"  # its hooks come on top of what it does itself, whatever a noisy machine says


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


def overheads(
    model: nn.Module, makes: Makes, company: Company, rivals: Sequence[str] = tuple(RIVALS)
) -> dict[str, float]:
    """Seconds per step that some of DDP's ways, and the engine, add to a step without communication."""
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())  # futures of gloo's sums know of no GPU
    large = sum(p.numel() for p in model.parameters()) >= LARGE
    found: dict[str, float] = {}
    with own_group() as group:
        pause = Pause(SECONDS if on_cpu else 0.0)
        bare = _pausing(makes, copy.deepcopy(model), pause)
        for name in possible(model, rivals):
            beat = Beat(company.mates) if company.mates is not None and on_cpu else None
            step = _pausing(makes, RIVALS[name].wrap(copy.deepcopy(model), group, beat), pause)
            found[name] = max(found.get(BASE, 0.0), _difference(bare, step, pause, beat, company))
            del step
            if large:
                gc.collect()  # DDP is part of a cycle, and as large as the model
        net = copy.deepcopy(model)
        step, optimizer = makes(net)
        optimizer.register_step_pre_hook(pause)
        with attach(net, optimizer, Method(Idle()), process_group=group):
            found[ENGINE] = max(0.0, _difference(bare, step, pause, None, company))
    return found


def _pausing(makes: Makes, net: nn.Module, pause: Pause) -> Step:
    step, optimizer = makes(net)
    optimizer.register_step_pre_hook(pause)
    return step


def _difference(one: Step, other: Step, pause: Pause, beat: Beat | None, company: Company) -> float:
    """How much longer the other step takes, the beats themselves apart; of each step the slowest rank counts."""
    times: dict[Step, list[float]] = {one: [], other: []}
    for step in times:
        for _ in range(WARM):
            step()
    before = beat.beats if beat is not None else 0
    for _ in range(TURNS):
        for step, taken in times.items():
            for number in range(BLOCK):
                company.in_step()
                pause.taken()
                start = time.perf_counter()
                step()
                if number:
                    taken.append(time.perf_counter() - start - pause.taken())
    waits = 0.0 if beat is None else (beat.beats - before) / (TURNS * BLOCK) * beat.seconds()
    longer, shorter = (median(company.slowest(times[step])) for step in (other, one))
    return longer - shorter - waits
