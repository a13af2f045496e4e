"""Curves: the loss against steps, bytes and seconds, one block per task, with a legend that hides lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from thinwire.lab.plot import Axis, Line, plot
from thinwire.lab.records import Row
from thinwire.lab.report.groups import Group
from thinwire.lab.report.series import Series
from thinwire.lab.report.words import bytes_of, is_number, plain

AROUND = 4  # points on each side that are averaged into each
WIDE = 8.0  # a log axis is used for numbers this many times apart
AXES = {
    "step": Axis("steps"),
    "bytes_sent": Axis("bytes sent by one worker", write=bytes_of),
    "seconds": Axis("seconds of training"),
}
TITLES = {"step": "Loss against steps", "bytes_sent": "Loss against bytes", "seconds": "Loss against seconds"}


def blocks(parts: Sequence[Group], series: Series) -> str:
    """Every task's legend and plots; empty if no row has curves."""
    tasks: dict[str, list[tuple[str, Row]]] = {}
    for part in parts:
        for row in part.rows:
            if isinstance(row.get("curves"), dict):
                tasks.setdefault(str(row.get("task") or ""), []).append((part.run, row))
    made = [_block(task if len(tasks) > 1 else "", rows, series) for task, rows in tasks.items()]
    return "\n".join(part for part in made if part)


def points_of(parts: Sequence[Group]) -> str:
    """What a point is: a mean over steps where the file says so, or else of the points around it."""
    spans = {row.get("loss_steps") for part in parts for row in part.rows if isinstance(row.get("curves"), dict)}
    if len(spans) == 1 and None not in spans:
        return f"Each point is the mean of the {plain(spans.pop())} steps before it, over all workers."
    if None not in spans:
        return "Each point is the mean of the steps before it, over all workers (loss steps, in the rows below)."
    return "Each point is the mean of those around it, as many on either side, four at most."


def _block(task: str, rows: Sequence[tuple[str, Row]], series: Series) -> str:
    drawn = {name: lines for name in AXES if (lines := _lines(name, rows, series))}
    if not drawn:
        return ""
    methods = dict.fromkeys(str(row["method"]) for _, row in rows)
    entries = "".join(
        f'<button type="button" class="entry {series.mark(method)}" data-series="{series.mark(method)}" '
        f'aria-pressed="true">{series.named(method)}</button>'
        for method in methods
    )
    plots = "\n".join(f"<div>{_plot(name, lines)}</div>" for name, lines in drawn.items())
    return "\n".join(
        [
            '<div class="block">',
            f"<h3>{escape(task)}</h3>" if task else "",
            f'<div class="legend" role="group" aria-label="Lines that are shown">{entries}</div>',
            f'<div class="plots">{plots}</div></div>',
        ]
    )


def _plot(name: str, lines: Sequence[Line]) -> str:
    axis = AXES[name]
    ends = [max(line.x) for line in lines]
    across = Axis(axis.label, log=name != "step" and _wide(ends), write=axis.write)
    return plot(TITLES[name], lines, across, Axis("", log=_wide([y for line in lines for y in line.y])))


def _lines(name: str, rows: Sequence[tuple[str, Row]], series: Series) -> list[Line]:
    made = []
    for run, row in rows:
        x, y = (_numbers(row["curves"], field) for field in (name, "loss"))
        if x and len(x) == len(y):
            seed = f", seed {row['seed']}" if "seed" in row else ""
            points = y if row.get("loss_steps") is not None else smooth(y)  # means already
            made.append(Line(f"{row['method']} ({run}{seed})", x, points, series.mark(row["method"])))
    return made


def _numbers(curves: Mapping[str, Any], name: str) -> list[float]:
    """A list of numbers; empty if it is anything else, since the file may hold anything."""
    values = curves.get(name)
    return [float(v) if is_number(v) else math.nan for v in values] if isinstance(values, list) else []


def _wide(values: Sequence[float]) -> bool:
    some = [value for value in values if math.isfinite(value)]
    return bool(some) and min(some) > 0 and max(some) / min(some) > WIDE


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of the points around each point, as many on either side: near the ends fewer, and the ends alone.

    >>> smooth([3.0, 2.0, 1.0])
    [3.0, 2.0, 1.0]
    """
    sides = [min(AROUND, i, len(values) - 1 - i) for i in range(len(values))]
    return [sum(values[i - side : i + side + 1]) / (2 * side + 1) for i, side in enumerate(sides)]
