"""Tables of docs/planning.md: forecasts beside measured steps, from the rows of `thinwire bench plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from thinwire.lab.bench_plan import NEAR, summary
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row, read

COMMANDS = {
    "plan.csv": "thinwire bench plan --params 4194304 --budget 1",
    "plan-gpu.csv": "thinwire bench plan --device cuda --params 8388608 --budget 1",
}
"""What records each file, as root."""
WORST = 0.25  # what no error should exceed


def verdict(data: Path, file: str = "plan.csv") -> str:
    """How far off all forecasts are, by hosts and by rate, and how good the recommendations are."""
    rows = _rows(data / file)
    if not rows:
        return _none(file)
    told = summary(rows)
    parts = {
        **{f"{n} hosts": [row for row in rows if row["hosts"] == n] for n in dict.fromkeys(r["hosts"] for r in rows)},
        **{
            str(rate): [row for row in rows if row["rate"] == rate] for rate in dict.fromkeys(r["rate"] for r in rows)
        },
        "all": rows,
    }
    head = [
        "cells",
        "number",
        "median error",
        "worst error",
        f"beyond {WORST:.0%}",
        f"recommendations within {NEAR:.0%} of the fastest",
        "by forecasts alone",
    ]
    good = (
        f"The slowest recommendation is {told['recommended_loses']:.1%} slower than the fastest method; by forecasts "
        f"alone it would be {told['forecast_loses']:.1%}. Beside the cells, a step without communication took "
        f"{told['computing_from']:.2f} to {told['computing_to']:.2f} times as long as when it was measured."
    )
    body = [_judged(name, part) for name, part in parts.items()]
    return f"{table(head, body)}\n\n{good}{where(rows[0], COMMANDS[file])}"


def _judged(name: str, rows: Sequence[Row]) -> list[str]:
    told = summary(rows)
    return [
        name,
        f"{told['cells']}",
        f"{told['median_error']:.1%}",
        f"{told['worst_error']:.1%}",
        f"{sum(abs(row['error']) > WORST for row in rows)}",
        f"{told['recommended_near']} of {told['recommended']}",
        f"{told['forecast_near']} of {told['recommended']}",
    ]


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
            f"{row['tried_ms']:,.1f}" if row.get("tried_ms") else "",
        ]
        for row in sorted(rows, key=lambda row: row["hosts"])
    ]
    head = ["hosts", "rate", "method", "forecast ms", "measured ms", "20% to 80%", "error", "binds", "tried ms"]
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
