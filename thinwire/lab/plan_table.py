"""Tables of docs/planning.md: forecasts beside measured steps, from the rows of `thinwire bench plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from thinwire.lab.bench_plan import NEAR, choices, summary
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row, read

FILE = "plan.csv"
COMMAND = "thinwire bench plan"
RECORDED = f"{COMMAND} --params 4194304 --budget 1"
NONE = f"No rows yet: `{COMMAND} --save benchmarks/data/{FILE}` records them, as root."


def verdict(data: Path) -> str:
    """How far off all forecasts are, rate by rate, and how good the recommendations are."""
    rows = _rows(data)
    if not rows:
        return NONE
    told = summary(rows)
    body = []
    for rate in dict.fromkeys(row["rate"] for row in rows):
        errors = sorted(abs(row["error"]) for row in rows if row["rate"] == rate)
        lost = [chosen["step_ms"] / best["step_ms"] - 1 for chosen, best in choices(rows) if chosen["rate"] == rate]
        body.append([rate, f"{len(errors)}", f"{median(errors):.1%}", f"{errors[-1]:.1%}", f"{max(lost):.1%}"])
    body.append(
        [
            "all",
            f"{told['cells']}",
            f"{told['median_error']:.1%}",
            f"{told['worst_error']:.1%}",
            f"{told['recommended_loses']:.1%}",
        ]
    )
    head = ["rate", "cells", "median error", "worst error", "recommended, slower than the fastest by at most"]
    good = (
        f"{told['recommended_near']} of {told['recommended']} recommendations are within {NEAR:.0%} of the fastest. "
        f"Computing took {told['computing_from']:.2f} to {told['computing_to']:.2f} times as long beside the cells "
        "as when it was measured."
    )
    return f"{table(head, body)}\n\n{good}{where(rows[0], RECORDED)}"


def cells(data: Path) -> str:
    """Every cell: forecast, measured, error."""
    rows = _rows(data)
    if not rows:
        return NONE
    body = [
        [
            f"{row['hosts']}",
            str(row["rate"]),
            f"`{row['method']}`",
            f"{row['predicted_ms']:,.1f}",
            f"{row['step_ms']:,.1f}",
            f"{row['step_ms_p20']:,.1f} to {row['step_ms_p80']:,.1f}",
            f"{row['error']:+.1%}",
            str(row["binds"]),
        ]
        for row in sorted(rows, key=lambda row: row["hosts"])
    ]
    head = ["hosts", "rate", "method", "forecast ms", "measured ms", "20% to 80%", "error", "binds"]
    return table(head, body, left=3) + where(rows[0], RECORDED)


def _rows(data: Path) -> Sequence[Row]:
    """Recorded where many hosts have cores of their own; none until then."""
    path = data / FILE
    return read(path) if path.exists() else []


TABLES: dict[str, Callable[[Path], str]] = {"plan": verdict, "plan-cells": cells}
