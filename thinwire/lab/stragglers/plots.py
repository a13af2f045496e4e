"""Plots of a race with stragglers: loss and accuracy against seconds, the steps of every worker, staleness.

Where both raced, panels of methods have lines or bars for real processes, and dashes or dots for the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from thinwire.lab.records import Row
from thinwire.lab.stragglers.course import TESTS
from thinwire.lab.stragglers.kinds import KINDS
from thinwire.lab.stragglers.table import family

COLOURS = {
    "sgd": "black",
    "backup-workers": "tab:brown",
    "ssp:staleness=1": "#9ecae1",
    "ssp:staleness=4": "#4292c6",
    "ssp:staleness=16": "#084594",
    "r2sp": "tab:green",
    "asgd": "tab:orange",
    "dc-asgd": "tab:red",
    "ad-psgd": "tab:purple",
}
OTHER = "tab:gray"
ACROSS = 3  # panels in a row


def race(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draw all, one seed each, in three files: `path`, and with -workers and -staleness in their names."""
    made = {path: curves, _named(path, "workers"): workers}
    if any(row["staleness"] for row in rows):
        made[_named(path, "staleness")] = staleness
    for file, draw in made.items():
        draw(rows, file)
    return list(made)


def curves(rows: Sequence[Row], path: Path) -> None:
    """Loss and accuracy on the test images."""
    from matplotlib import pyplot  # noqa: PLC0415  (an extra)

    places = list(dict.fromkeys(row["where"] for row in rows))
    figure, grid = pyplot.subplots(
        2, len(places), figsize=(10.0, 7.4), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 2)
    )
    for place, (top, bottom) in zip(places, zip(*grid, strict=True), strict=True):
        for row in (row for row in rows if row["where"] == place):
            name, seconds = family(row["method"]), row["curves"]["seconds"]
            style = {"color": COLOURS.get(name, OTHER), "lw": 1.2}
            top.plot(seconds, row["curves"]["loss"], label=name, **style)
            bottom.plot(seconds, row["curves"]["accuracy"], **style)
        bottom.axhline(rows[0]["target"], color="gray", lw=0.8)
        top.set_title("real processes" if place == "processes" else "on the clock", fontsize=9)
        bottom.set_xlabel("seconds")
    grid[0][0].set(yscale="log", ylim=(0.05, 5), ylabel="loss on the test images")
    grid[0][0].set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2, 5], ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"])
    grid[0][0].minorticks_off()
    grid[1][0].set(ylim=(0.6, 1.0), ylabel=f"accuracy, mean of {TESTS} tests")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="lower center", ncols=5)
    _save(figure, rows, path, bottom=0.07)


def workers(rows: Sequence[Row], path: Path) -> None:
    """Steps that each worker had taken by then: a panel per method."""

    def draw(panel: Any, some: Sequence[tuple[Row, str]]) -> None:
        for row, style in some:
            for rank, steps in enumerate(zip(*row["curves"]["steps"], strict=True)):
                colour = f"C{rank}" if row["workers"] <= 8 else OTHER
                label = f"worker {rank}" if style == "-" and row["workers"] <= 8 else None
                panel.plot(row["curves"]["seconds"], steps, color=colour, lw=1.1, ls=style, label=label)

    _panels(rows, path, draw, "seconds", "steps", "dashes")


def staleness(rows: Sequence[Row], path: Path) -> None:
    """How many updates of others a gradient did not know of, as shares of all gradients: a panel per method."""

    def draw(panel: Any, some: Sequence[tuple[Row, str]]) -> None:
        for row, style in some:
            ages = {int(age): float(count) for age, count in (one.split(":") for one in row["staleness"].split())}
            total = sum(ages.values())
            x, y = list(ages), [count / total for count in ages.values()]
            if style == "-":
                panel.bar(x, y, color="tab:blue", alpha=0.5, label="processes" if len(some) > 1 else "clock")
            else:
                panel.plot(x, y, ".", color="black", ms=5, label="clock")
        panel.set(yscale="log", ylim=(5e-4, 1.5))
        panel.xaxis.get_major_locator().set_params(integer=True)

    _panels([row for row in rows if row["staleness"]], path, draw, "staleness", "share of gradients", "dots")


Draw = Callable[[Any, Sequence[tuple[Row, str]]], None]


def _panels(rows: Sequence[Row], path: Path, draw: Draw, across: str, up: str, clock: str) -> None:
    from matplotlib import pyplot  # noqa: PLC0415  (an extra)

    by_method: dict[str, list[tuple[Row, str]]] = {}
    for row, style in _styled(rows):
        by_method.setdefault(row["method"], []).append((row, style))
    down = math.ceil(len(by_method) / ACROSS)
    figure, grid = pyplot.subplots(
        down, ACROSS, figsize=(10.0, 1.0 + 2.1 * down), sharex=True, sharey=True, squeeze=False
    )
    panels = grid.flatten()
    for panel, (method, some) in zip(panels, by_method.items(), strict=False):
        draw(panel, some)
        panel.set_title(method, fontsize=9)
    for panel in panels[len(by_method) :]:
        panel.set_axis_off()
    for number in range(len(by_method)):
        if number % ACROSS == 0:
            panels[number].set_ylabel(up)
        if number + ACROSS >= len(by_method):
            panels[number].set_xlabel(across)
            panels[number].tick_params(labelbottom=True)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, fontsize=8, loc="lower center", ncols=len(handles))
    both = len({row["where"] for row in rows}) > 1
    note = f"; processes, and the clock in {clock}" if both else f"; {rows[0]['where']}"
    _save(figure, rows, path, bottom=0.3 / (1.0 + 2.1 * down), note=note)


def _styled(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Each row with the style of its lines."""
    both = len({row["where"] for row in rows}) > 1
    return [(row, "--" if both and row["where"] == "clock" else "-") for row in rows]


def _save(figure: Any, rows: Sequence[Row], path: Path, bottom: float, note: str = "") -> None:
    from matplotlib import pyplot  # noqa: PLC0415  (an extra)

    first = rows[0]
    title = (
        f"{first['task']}, {first['workers']} workers at {first['rate']}, {KINDS.parse(first['stragglers'])}{note}"
    )
    figure.suptitle(title, fontsize=10)
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path)
    pyplot.close(figure)


def _named(path: Path, what: str) -> Path:
    return path.with_name(f"{path.stem}-{what}{path.suffix}")
