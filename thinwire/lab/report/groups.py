"""Groups: the rows that make one line of the summary. Rows that agree in all of SETTINGS differ in their seeds alone.

A row belongs here when it has a method and either an accuracy, curves, or the time of a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import final

from thinwire.lab.intervals import differ
from thinwire.lab.records import Row
from thinwire.lab.report.runs import MAIN, Run
from thinwire.lab.report.words import bytes_of, is_number, plain
from thinwire.lab.step_sizes import named

SETTINGS = (
    *("task", "split", "kind", "method", "optimizer", "compressor", "label", "workers", "hosts", "rate", "latency"),
    *("timing", "epochs", "params", "lr", "eta"),
)
ACCURACIES = ("accuracy", "accuracy_mean_model")


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


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """The runs with the optimizer in the names of methods, if there are several on the page."""
    rows = [row for run in runs for row in run.rows if belongs(row)]
    if len({str(row["optimizer"]) for row in rows if row.get("optimizer") is not None}) < 2:
        return list(runs)
    return [replace(run, tables={**run.tables, MAIN: list(map(_named, run.rows))}) for run in runs]


def _named(row: Row) -> Row:
    if row.get("method") is None or row.get("optimizer") is None:
        return row
    others = {name: value for name, value in row.items() if name != "optimizer"}
    return {**others, "method": named(str(row["optimizer"]), str(row["method"]))}


@final
@dataclass(frozen=True)
class _Result:
    """What a finding looks at."""

    part: Group
    accuracy: float
    tested: int
    ratio: float
    sent: float
    seconds: float
    faster: float | None


def finding(parts: Sequence[Group]) -> str:
    """What the runs of one task show; empty if nothing.

    Of the methods whose accuracy the test images cannot tell from the best, the one that sent least, and the quickest
    where there was a link.
    """
    known = [result for part in parts if (result := _known(part)) is not None]
    if len(known) < 2:
        return ""
    best = max(known, key=lambda result: result.accuracy)
    alike = [
        result for result in known if not differ(result.accuracy, best.accuracy, min(result.tested, best.tested))
    ]
    least = max(alike, key=lambda result: result.ratio)
    among = (
        f"{best.tested:,} test images cannot tell the accuracy of {len(alike)} of {len(known)} methods from the best "
        f"({best.accuracy:.1%})."
    )
    if least.ratio < 1.05:
        return f"{among} None of them sent fewer bytes than float32."
    sentences = (
        f"{among} Of these {least.part.method} sent least: {bytes_of(least.sent)} per worker, {least.ratio:.1f} "
        "times less than a float32 ring all-reduce."
    )
    timed = [result for result in alike if result.faster is not None and result.faster > 1]
    if timed and len({result.part.settings["rate"] for result in known}) == 1:  # seconds of one link
        quick = min(timed, key=lambda result: result.seconds)
        sentences += (
            f" {quick.part.method} was the quickest: {quick.seconds:.1f} s, {quick.faster:.1f} times sooner than "
            "float32 with the same optimizer."
        )
    return sentences


def _known(part: Group) -> _Result | None:
    """What it takes for a finding; None where the file does not have it, as those of a test without a size."""
    tested = part.finite("tested")
    values = [part.finite(name) for name in ("accuracy", "ratio", "bytes_sent")]
    if not tested or None in values:
        return None
    accuracy, ratio, sent = (value or 0.0 for value in values)
    if accuracy > 1:
        return None
    return _Result(
        part, accuracy, int(tested), ratio, sent, part.finite("seconds") or math.inf, part.finite("faster")
    )
