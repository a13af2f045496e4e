"""Idle: whether this machine did anything else while it was measured, and what to make of times that disagree.

A step that shares its processors with another program takes longer, evenly, so that the spread of its times does not
tell. The kernel does: it counts the seconds for which all processors were busy, and those of this process. Where it
does not say, only repeats of the same measurement are left to judge by.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from thinwire.planning.company import Company
    from thinwire.planning.computing import Computing

STAT = Path("/proc/stat")
TICKS = os.sysconf("SC_CLK_TCK")  # per second, in which the kernel counts
QUIET = 0.15  # processors that others may keep busy all the time: every machine does something
FULL = 0.9  # of all processors: below it there was one free for whoever wanted it
AGREE = 1.25  # times, by which two heats may differ
HEATS = 5  # of a measurement, at most
PAUSES = (0.0, 0.25, 0.5, 1.0)  # seconds before the second heat and those after it: others may have ended by then


class Load(NamedTuple):
    """Processors that were kept busy on this machine, in the mean: by the ranks that measure, and by all others."""

    own: float
    others: float

    @property
    def disturbs(self) -> bool:
        """Whether others took processors that the ranks here would have used."""
        return self.others > QUIET and self.own + self.others > FULL * (os.cpu_count() or 1)


@final
class Meter:
    """Counts from when it is made."""

    def __init__(self, company: Company) -> None:
        self._company = company
        self._wall, self._own, self._all = time.perf_counter(), time.process_time(), _busy()

    def read(self) -> Load:
        """Of the time since then; all ranks call this. Where the kernel does not count, others did nothing."""
        wall = time.perf_counter() - self._wall
        (own,) = self._company.total_here([time.process_time() - self._own])
        busy = _busy() - self._all
        return Load(own / wall, max(0.0, busy - own) / wall)


class Heats(NamedTuple):
    """What computing was found to take, heat by heat, and how much others did in the quietest of those that agree."""

    computing: Computing  # that of the shortest heat: whatever disturbs a machine only adds
    steps: tuple[float, ...]  # seconds of a step, by heat
    others: float
    steady: bool


def heats(measure: Callable[[], Computing], company: Company) -> Heats:
    """Measure until two heats agree in which nobody disturbed, or `HEATS` times; all ranks call this.

    Ranks take the same number of heats: the slowest rank's step and the busiest machine decide.
    """
    found: list[tuple[float, Computing, float, bool]] = []
    while True:
        meter = Meter(company)
        computing = measure()
        load = meter.read()
        step, others, disturbed = company.slowest([computing.step, load.others, float(load.disturbs)])
        found.append((step, computing, others, bool(disturbed)))
        least = min(step for step, *_ in found)
        near = [heat for heat in found if heat[0] <= AGREE * least]
        quiet = [heat for heat in near if not heat[3]]
        steady = len(near) > 1 and len(quiet) > 1
        if steady or len(found) == HEATS:
            best = min(found, key=lambda heat: heat[0])
            return Heats(best[1], tuple(step for step, *_ in found), min(heat[2] for heat in near), steady)
        time.sleep(PAUSES[len(found) - 1])


def doubt(steps: Sequence[float], others: float, choices: Sequence[tuple[float, str]]) -> str:
    """A sentence about measurements that others disturbed; `choices` are what to take if a step computes so long.

    >>> doubt((0.01, 0.43), 1.6, [(0.01, "int4"), (0.43, "ddp")])
    'Other programs kept 1.6 of the processors busy, and a step computed for 10.0 to 430.0 ms: which is right cannot \
be known here. With 10.0 ms take int4, with 430.0 ms take ddp. Plan again while the machine is idle.'
    """
    spread = max(steps) > AGREE * min(steps)
    seen = f"a step computed for {1e3 * min(steps):,.1f} to {1e3 * max(steps):,.1f} ms"
    busy = f"Other programs kept {others:.1f} of the processors busy"
    if not spread:
        return (
            f"{busy}: times may be too long, and are those of a machine as busy as that. Plan again when it is idle."
        )
    causes = f"{busy}, and {seen}" if others > QUIET else seen.capitalize()
    if len({method for _, method in choices}) == 1:
        advice = f"Either way {choices[0][1]} is recommended."
    else:
        advice = f"With {', with '.join(f'{1e3 * seconds:,.1f} ms take {method}' for seconds, method in choices)}."
    return f"{causes}: which is right cannot be known here. {advice} Plan again while the machine is idle."


def _busy() -> float:
    """Seconds for which processors of this machine have been busy since it started; 0 where the kernel is silent."""
    try:
        words = STAT.read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    if len(words) < 9 or words[0] != "cpu":
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS
