"""Step sizes of the race with stragglers: what a climb on the clock found for each contestant.

A climb starts at 0.1 and goes to twice or half of it as long as that reaches the target in fewer seconds, or, where
neither reaches it, ends with a higher accuracy. Its seed is not raced. The rows are in
benchmarks/data/race-stragglers-steps.csv, and a test compares this table with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from thinwire.lab.records import Row
from thinwire.lab.stragglers import clock
from thinwire.lab.stragglers.course import Run

FIRST, FEWEST, MOST = 0.1, -7, 6  # the first step size, and how often it is halved or doubled at most
SEED = 100  # of the climb
STEPS: Mapping[tuple[str, int], Mapping[str, float]] = {}


def step_of(stragglers: str, workers: int, method: str, lr: float | None) -> float:
    """The step size that is asked for, or recorded; ValueError if there is none."""
    found = STEPS.get((stragglers, workers), {}).get(method) if lr is None else lr
    if found is None:
        raise ValueError(
            f"no step size is recorded for {method} on {workers} workers with --stragglers {stragglers}; write --lr "
            f"0.1, or find one with thinwire race --stragglers {stragglers} --tune --clock {workers} --method {method}"
        )
    if found <= 0:
        raise ValueError(f"lr={found} does not step; write --lr 0.1")
    return found


def climb(run: Run) -> list[Row]:
    """The runs that were made, by step size; each ends when it has arrived."""
    rows: dict[int, Row] = {}

    def height(k: int) -> tuple[bool, float, float]:
        if k not in rows:
            row = clock.race(replace(run, lr=FIRST * 2**k, whole=False))
            rows[k] = {name: value for name, value in row.items() if name != "curves"}
        return _height(rows[k])

    at = 0
    for way in (1, -1):
        while FEWEST <= at + way <= MOST and height(at + way) > height(at):
            at += way
    return [rows[k] for k in sorted(rows)]


def best(rows: Sequence[Row]) -> Row:
    """The one that arrived first or, if none did, came nearest."""
    return max(rows, key=_height)


def _height(row: Row) -> tuple[bool, float, float]:
    return row["reached"], -row["seconds"] if row["reached"] else 0.0, row["accuracy"]
