"""Plots of the studies: panels side by side, each with a few lines or marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ("black", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b")


@dataclass(frozen=True)
class Line:
    """Points of one colour, joined unless `marks`; `low` and `high` are the ends of bars."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    marks: bool = False
    dashed: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """Axes with a title; `ticks` are names for 0, 1, 2, ... on the first axis."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[str] = ()


def draw(panels: Sequence[Panel], path: Path) -> None:
    """SVG, PNG or PDF by the name of the file."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(4.6 * len(panels), 3.9), dpi=100, layout="constrained")
    explained: list[str] = []
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for line in panel.lines:
            colour = COLOURS[line.colour % len(COLOURS)]
            style = "none" if line.marks else "--" if line.dashed else "-"
            axes.plot(
                line.x, line.y, ls=style, marker="o" if line.marks else "", color=colour, lw=1.5, label=line.name
            )
            if line.low:
                axes.vlines(line.x, line.low, line.high, color=colour, lw=1)
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(panel.x, fontsize=9)
        axes.set_ylabel(panel.y, fontsize=9)
        axes.set_xscale("log" if panel.log_x else "linear")
        axes.set_yscale("log" if panel.log_y else "linear")
        if panel.ticks:
            axes.set_xticks(range(len(panel.ticks)), panel.ticks, fontsize=8)
            axes.margins(x=0.15)
        axes.grid(alpha=0.25)
        names = [line.name for line in panel.lines if not line.name.startswith("_")]
        if names and names != explained:  # lines of the panel beside it have the same names and colours
            axes.legend(fontsize=7, frameon=False)
        explained = names
    figure.savefig(path)
