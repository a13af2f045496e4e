"""Trial: real steps of the methods that are forecast to be about equally fast, which decide between them.

A forecast misses by some percent, and by 20% now and then (docs/planning.md), so that it cannot tell methods apart
that lie closer together. Where there are hosts to do so, those near the fastest take some steps, in turns, with one
of them in memory at a time. Nothing but the choice follows from these steps: forecasts stay as they are.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, final

from thinwire.planning.rivals import RIVALS

if TYPE_CHECKING:
    from thinwire.core.method import Method
    from thinwire.planning.computing import Step
    from thinwire.planning.stage import Stage

MOST = 4  # methods that take steps
REACH = 0.3  # of the fastest step: who is forecast to be slower by more is not tried
HEATS = 2  # the second is for those that are still close together
TURNS = 3  # of every method, so that what disturbs the machine for a while is not taken for one of them
NEAR = 0.1  # of the fastest: those that are slower by less than that have as many turns once more
WARM = 3  # steps: DDP cuts its buckets again after the first, and its PowerSGD begins with the third
FEWEST, STEPS = 3, 30  # timed samples of a turn: steps of some milliseconds scatter by 20%
LONGEST = 2.0  # seconds that they should take
PATIENCE = 15.0  # seconds of warming up, after which forecasts decide
MIXED = 32  # steps of a sample at most, where rounds are of several kinds
IN_A_ROW = 4  # steps of a sample, where a result may arrive in the next step: between samples it would do so for free


@final
@dataclass(frozen=True)
class Entry:
    """Who takes steps: how it is built, how many steps are timed together, and how many come first."""

    name: str
    build: Callable[[], AbstractContextManager[Step]]
    block: int = 1
    warm: int = WARM

    @classmethod
    def of(cls, name: str, stage: Stage, methods: Mapping[str, Method]) -> Entry:
        """By the name of its forecast."""
        if name in RIVALS:
            return cls(name, partial(stage.rival, name))
        method = methods[name]
        sync = method.sync
        rarest = min(share for share, _ in method.exchange.rounds())
        rounds = min(MIXED, math.ceil(1 / rarest))  # have each kind of them
        block = sync.every * max(rounds, IN_A_ROW if sync.staleness else 1)
        return cls(name, partial(stage.attached, method), block, max(WARM, sync.warmup, sync.every))


def finalists(forecasts: Mapping[str, float], most: int = MOST) -> list[str]:
    """Those whose forecast is near the fastest, the fastest first."""
    order = sorted(forecasts, key=lambda name: forecasts[name])
    return [name for name in order if forecasts[name] <= forecasts[order[0]] * (1 + REACH)][:most]


def trial(
    names: Sequence[str], stage: Stage, methods: Mapping[str, Method], say: Callable[[str], None]
) -> dict[str, float]:
    """Seconds of a step of each, until the slowest rank has ended; all ranks call this, and rank 0 says with whom.

    Where one of them could not be tried there are none: it might be the fastest, and forecasts decide. Those that
    are not in the second heat stay as much slower than the fastest as they were in the first, whatever disturbs the
    machine in the second.
    """
    told = stage.company.of_first(list(names))
    if len(told) < 2:
        return {}  # there is nothing to decide
    samples: dict[str, list[float]] = {name: [] for name in told}
    times: dict[str, float] = {}
    for _ in range(HEATS):
        for name in told * TURNS:
            say(f"steps of {name}")
            found = _turn(Entry.of(name, stage, methods), stage, say)
            if not found:
                return {}
            samples[name] += found
        now = {name: median(samples[name]) for name in told}
        moved = min(now.values()) / min(times.values(), default=min(now.values()))
        times = {name: moved * before for name, before in times.items()} | now
        told = [name for name in told if times[name] <= (1 + NEAR) * min(times.values())]
        if len(told) < 2:
            break
    return times


def _turn(entry: Entry, stage: Stage, say: Callable[[str], None]) -> list[float]:
    """Seconds per step of the slowest rank, sample by sample; none where warming up would take too long."""
    company = stage.company
    gc.collect()  # wires and DDP are parts of cycles, and as large as the model
    with ExitStack() as stack:
        try:
            step = stack.enter_context(entry.build())
        except ValueError as error:  # on all ranks: this method does not go with this optimizer, say
            say(f"{entry.name} takes no steps here: {error}")
            return []
        (first,) = company.slowest([stage.seconds(step)])
        if entry.warm * first > PATIENCE:
            return []
        for _ in range(entry.warm - 1):
            step()
        (usual,) = company.slowest([stage.seconds(step, entry.block)])
        count = max(FEWEST, min(STEPS, math.floor(LONGEST / (usual * entry.block))))
        return company.slowest([stage.seconds(step, entry.block) for _ in range(count)])
