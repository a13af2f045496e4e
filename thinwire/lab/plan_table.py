"""Tables of docs/planning.md: forecasts beside measured steps, from the rows of `thinwire bench plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from thinwire.lab.bench_plan import NEAR, choices, losses, summary
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row, read

COMMANDS = {
    "plan.csv": "thinwire bench plan --hosts 4,8 --params 4194304 --budget 0.3",
    "plan-gpu.csv": "thinwire bench plan --device cuda --params 16777216 --budget 1",
}
"""What records each file, as root."""


def verdict(data: Path, file: str = "plan.csv") -> str:
    """How far off all forecasts are, rate by rate, and how good the recommendations are."""
    rows = _rows(data / file)
    if not rows:
        return _none(file)
    told = summary(rows)
    body = []
    for rate in dict.fromkeys(row["rate"] for row in rows):
        errors = sorted(abs(row["error"]) for row in rows if row["rate"] == rate)
        lost = losses([each for each in choices(rows) if each[0]["rate"] == rate])
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
    return f"{table(head, body)}\n\n{good}{where(rows[0], COMMANDS[file])}"


def cells(data: Path, file: str = "plan.csv") -> str:
    """Every cell: forecast, measured, error."""
    rows = _rows(data / file)
    if not rows:
        return _none(file)
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
    return table(head, body, left=3) + where(rows[0], COMMANDS[file])


def _rows(path: Path) -> Sequence[Row]:
    """Recorded where many hosts have cores of their own; none until then."""
    return read(path) if path.exists() else []


def _none(file: str) -> str:
    return f"No rows yet: `{COMMANDS[file]} --save benchmarks/data/{file}` records them, as root."


TABLES: dict[str, Callable[[Path], str]] = {
    "plan": verdict,
    "plan-cells": cells,
    "plan-gpu": partial(verdict, file="plan-gpu.csv"),
    "plan-gpu-cells": partial(cells, file="plan-gpu.csv"),
}
