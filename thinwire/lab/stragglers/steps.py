"""Step sizes of the race with stragglers: what a climb on the clock found for each contestant.

A climb starts at 0.1, doubles the step size and then halves it, each until two in a row are no better than the best
so far. Better is to reach the target with all seeds, and in fewer seconds; where neither does, to end with a higher
accuracy; and of two that learn nothing, to be smaller, so that accuracies near chance lead nowhere.

The seeds are not raced; there are four with 4 workers and one with 16 or 64, whose runs take longer. A step size that
fails with one seed is not tried with the next.

The rows are in benchmarks/data/race-stragglers-steps.csv, and a test compares this table with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from thinwire.lab.records import Row
from thinwire.lab.stragglers import clock
from thinwire.lab.stragglers.course import LEARNT, Run

FIRST, FEWEST, MOST = 0.1, -7, 5  # the first step size, and how often it is halved or doubled at most
PATIENCE = 2
SEEDS, MANY = (100, 101, 102, 103), 16  # of the climb: as many as make 16 workers
STEPS: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("slow", 4): {
        "sgd": 0.4,
        "backup-workers:spares=1": 0.4,
        "ssp:staleness=1": 0.1,
        "ssp:staleness=4": 0.1,
        "ssp:staleness=16": 0.1,
        "r2sp": 0.1,
        "asgd": 0.2,
        "dc-asgd": 0.2,
        "ad-psgd": 0.4,
    },
    ("stalls", 4): {
        "sgd": 0.4,
        "backup-workers:spares=1": 0.4,
        "ssp:staleness=1": 0.1,
        "ssp:staleness=4": 0.2,
        "ssp:staleness=16": 0.1,
        "r2sp": 0.1,
        "asgd": 0.2,
        "dc-asgd": 0.2,
        "ad-psgd": 0.4,
    },
    ("slow", 16): {
        "sgd": 0.8,
        "backup-workers:spares=1": 0.4,
        "ssp:staleness=1": 0.05,
        "ssp:staleness=4": 0.05,
        "ssp:staleness=16": 0.05,
        "r2sp": 0.025,
        "asgd": 0.025,
        "dc-asgd": 0.025,
        "ad-psgd": 0.4,
    },
    ("stalls", 16): {
        "sgd": 0.8,
        "backup-workers:spares=1": 0.4,
        "ssp:staleness=1": 0.05,
        "ssp:staleness=4": 0.05,
        "ssp:staleness=16": 0.025,
        "r2sp": 0.025,
        "asgd": 0.025,
        "dc-asgd": 0.025,
        "ad-psgd": 0.4,
    },
    ("slow", 64): {
        "sgd": 0.4,
        "backup-workers:spares=6": 0.4,
        "ssp:staleness=1": 0.0125,
        "ssp:staleness=4": 0.0125,
        "ssp:staleness=16": 0.00625,
        "r2sp": 0.0125,
        "asgd": 0.0125,
        "dc-asgd": 0.0125,
        "ad-psgd": 0.4,
    },
    ("stalls", 64): {
        "sgd": 0.4,
        "backup-workers:spares=6": 0.4,
        "ssp:staleness=1": 0.0125,
        "ssp:staleness=4": 0.00625,
        "ssp:staleness=16": 0.0125,
        "r2sp": 0.0015625,
        "asgd": 0.0125,
        "dc-asgd": 0.0125,
        "ad-psgd": 0.4,
    },
}


def step_of(stragglers: str, workers: int, method: str, lr: float | None) -> float:
    """The step size that is asked for, or recorded; ValueError if there is none."""
    found = STEPS.get((stragglers, workers), {}).get(method) if lr is None else lr
    if found is None:
        raise ValueError(
            f"no step size is recorded for {method} on {workers} workers with --stragglers {stragglers}; write "
            f"--lr 0.1, or find one with thinwire race --tune --stragglers {stragglers} --clock {workers} "
            f"--method {method}"
        )
    if not 0 < found < math.inf:
        raise ValueError(f"lr={found} does not step; write --lr 0.1")
    return found


def climb(run: Run) -> list[Row]:
    """The runs that were made, by step size; each ends when it has arrived."""
    rows: dict[int, list[Row]] = {}

    def height(k: int) -> tuple[bool, float, float]:
        if k not in rows:
            rows[k] = []
            for seed in SEEDS[: max(1, MANY // run.workers)]:
                row = clock.race(replace(run, lr=FIRST * 2**k, seed=seed, gives_up=True))
                rows[k].append({name: value for name, value in row.items() if name != "curves"})
                if not row["reached"]:
                    break
        return _height(rows[k])

    for way in (1, -1):
        at = k = max(rows, key=height, default=0)
        while abs(k + way - at) <= PATIENCE and FEWEST <= k + way <= MOST:
            k += way
            at = k if height(k) > height(at) else at
    return [row for k in sorted(rows) for row in rows[k]]


def best(rows: Sequence[Row]) -> float:
    """The step size that arrived first or, if none did, came nearest."""
    by_lr: dict[float, list[Row]] = {}
    for row in rows:
        by_lr.setdefault(row["lr"], []).append(row)
    return max(by_lr, key=lambda lr: _height(by_lr[lr]))


def _height(rows: Sequence[Row]) -> tuple[bool, float, float]:
    if all(row["reached"] for row in rows):
        return True, -fmean(row["seconds"] for row in rows), 0.0
    right = fmean(row["accuracy"] for row in rows)
    return False, 0.0, right if right >= LEARNT else -rows[0]["lr"]
