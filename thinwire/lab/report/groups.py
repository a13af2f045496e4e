"""Groups: the rows that make one line of the summary. Rows that agree in all of SETTINGS differ in their seeds alone.

A row belongs here when it has a method and either an accuracy, curves, or the time of a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import final

from thinwire.lab.records import Row
from thinwire.lab.report.runs import Run
from thinwire.lab.report.words import bytes_of, is_number, plain

SETTINGS = (
    *("task", "split", "kind", "method", "compressor", "label", "workers", "hosts", "rate", "latency", "epochs"),
    *("params", "lr", "eta"),
)
ACCURACIES = ("accuracy", "accuracy_mean_model")
NEAR = 0.005  # half a point of accuracy


@final
@dataclass(frozen=True)
class Group:
    """Rows of one file that differ in their seeds alone."""

    run: str
    rows: Sequence[Row]

    @property
    def settings(self) -> Row:
        """What decides the numbers."""
        return {name: self.rows[0].get(name) for name in SETTINGS}

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.rows[0]["method"])

    @property
    def stepped(self) -> bool:
        """Whether this is the time of a step, and not a training run."""
        return is_number(self.rows[0].get("step_ms"))

    def mean(self, name: str) -> float | None:
        """The mean over the rows; None if a row has no such number."""
        values = [derived(row, name) for row in self.rows]
        there = [value for value in values if value is not None]
        return fmean(there) if len(there) == len(values) else None

    def finite(self, name: str) -> float | None:
        """The mean, if it can be drawn and compared: finite, and not below 0."""
        value = self.mean(name)
        return value if value is not None and math.isfinite(value) and value >= 0 else None


def derived(row: Row, name: str) -> float | None:
    """A number of the row, or one that follows from others; None if the row has neither."""
    if is_number(found := row.get(name)):
        return float(found)
    if name == "bits_per_element" and is_number(sent := row.get("tx_bits_per_param")):
        return float(sent)
    if name == "speedup":
        over, step, ddp = (row.get(field) for field in ("speedup_over_ddp", "step_ms", "ddp_ms"))
        if is_number(over):
            return float(over)
        return ddp / step if is_number(step) and is_number(ddp) and step else None
    return None


def groups(runs: Sequence[Run]) -> list[Group]:
    """What the summary shows, in the order of the files."""
    made: dict[tuple[int, str], list[Row]] = {}
    for place, run in enumerate(runs):
        for row in run.rows:
            if belongs(row):
                made.setdefault((place, plain([row.get(name) for name in SETTINGS])), []).append(row)
    return [Group(runs[place].name, rows) for (place, _), rows in made.items()]


def belongs(row: Row) -> bool:
    """Whether a row describes a training run or a step."""
    measured = any(is_number(row.get(name)) for name in (*ACCURACIES, "step_ms"))
    return row.get("method") is not None and (measured or isinstance(row.get("curves"), dict))


def finding(parts: Sequence[Group]) -> str:
    """A sentence on one task: the smallest traffic within half a point of the best; empty if there is none."""
    known = [
        (accuracy, ratio, sent, part.method)
        for part in parts
        if (accuracy := part.finite("accuracy")) is not None
        and (ratio := part.finite("ratio")) is not None
        and (sent := part.finite("bytes_sent")) is not None
    ]
    if len(known) < 2:
        return ""
    best = max(accuracy for accuracy, *_ in known)
    accuracy, ratio, sent, method = max((one for one in known if one[0] >= best - NEAR), key=lambda one: one[1])
    if ratio < 1.05:
        return f"Best accuracy: {best:.1%}. No method within half a point of it sent fewer bytes than float32."
    return (
        f"Among the methods within half a point of the best accuracy ({best:.1%}), {method} sent least: "
        f"{bytes_of(sent)} per worker, {ratio:.1f} times less than a float32 ring all-reduce, at {accuracy:.1%}."
    )
