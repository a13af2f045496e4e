"""Accuracy against bytes and loss against epochs: panels for each task and split, a colour for each method.

Above, a mark for each compressor, and lost runs below the others. Below, the training loss of the mean model after
each epoch, mean over seeds, under four of the compressors; a run that is lost ends where it was stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from thinwire.lab.records import Row
from thinwire.lab.reproduce.deepsqueeze_tables import NAMES, SPLITS

COLOURS = {
    "d-psgd": "black",
    "dcd-psgd": "#d55e00",
    "ecd-psgd": "#cc79a7",
    "choco-sgd": "#0072b2",
    "deepsqueeze": "#009e73",
}
MARKS = {
    "32 bits": "*",
    "4 bits": "D",
    "2 bits": "o",
    "sign": "P",
    "top 10%": "^",
    "top 1%": "v",
}
TICKS = (0.995, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.5, 0.1)
ASIDE = 1.05  # methods with the same compressor send the same: they are drawn side by side, by this factor
HIGH = 10.0  # loss at which curves are cut
LOST = {name: -0.16 - 0.08 * i for i, name in enumerate(COLOURS)}  # heights of lost runs


SHOWN = ("4 bits", "2 bits", "sign", "top 1%")


def plot(means: Sequence[Row], curves: Sequence[Row], path: Path) -> None:
    """SVG, PNG or PDF by the name of the file."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    groups = list(dict.fromkeys((row["task"], row["split"]) for row in means))
    figure = Figure(figsize=(5.6 * len(groups) + 1.7, 10.4), dpi=110, layout="constrained")
    parts: Any = figure.subfigures(2, 1)
    above, below = parts
    panels = above.subplots(1, len(groups), squeeze=False)[0]
    for (task, split), panel in zip(groups, panels, strict=True):
        mine = [row for row in means if (row["task"], row["split"]) == (task, split) and not row["refused"]]
        _panel(panel, mine)
        panel.set_title(f"{task}, {SPLITS[split]}", fontsize=10)
    panels[0].set_ylabel("test accuracy of the mean model, %")
    above.legend(handles=_legend(), loc="outside right center", fontsize=8, frameon=False)
    halves = below.subfigures(1, len(groups), squeeze=False)[0]
    for (task, split), half in zip(groups, halves, strict=True):
        _losses(half, [row for row in curves if (row["task"], row["split"]) == (task, split)])
        half.suptitle(f"{task}, {SPLITS[split]}", fontsize=10)
    figure.savefig(path)


def _losses(figure: Any, curves: Sequence[Row]) -> None:
    """Loss against epochs, a panel for each of four compressors; D-PSGD in float32 is in all."""
    panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    for label, panel in zip(SHOWN, panels, strict=True):
        for method, colour in COLOURS.items():
            some = [row for row in curves if (row["method"], row["label"]) in {(method, label), (method, "32 bits")}]
            epochs = sorted({row["epochs"] for row in some})
            loss = [fmean(row["loss"] for row in some if row["epochs"] == epoch) for epoch in epochs]
            panel.plot(epochs, [min(x, HIGH) for x in loss], color=colour, lw=1.4, marker=".", ms=4)
        panel.set(yscale="log")
        panel.set_title(label, fontsize=9)
        panel.grid(alpha=0.25)
    panels[0].set_ylim(top=HIGH)
    figure.supxlabel("epochs", fontsize=9)
    figure.supylabel("training loss of the mean model", fontsize=9)


def _panel(panel: Any, means: Sequence[Row]) -> None:
    for row in means:
        colour, mark = COLOURS[row["method"]], MARKS[row["label"].removesuffix(", L2")]
        x = row["megabytes"] * ASIDE ** (list(COLOURS).index(row["method"]) - 2)
        face = "white" if row["label"].endswith(", L2") else colour
        if row["accuracy"] is None:
            panel.plot(x, LOST[row["method"]], mark, color=colour, mfc=face, ms=7, alpha=0.5)
            panel.plot(x, LOST[row["method"]], "x", color="black", ms=5)
            continue
        panel.plot([x, x], [_up(row["lowest"]), _up(row["highest"])], color=colour, lw=0.8, alpha=0.6)
        panel.plot(x, _up(row["accuracy"]), mark, color=colour, mfc=face, ms=10 if mark == "*" else 6)
    high = max(row["highest"] or 0 for row in means)
    shown = [tick for tick in TICKS if _up(tick) < _up(high) + 0.1]
    panel.set_xscale("log")
    panel.set_xticks(_round(means), [f"{x:g}" for x in _round(means)])
    panel.minorticks_off()
    panel.set_yticks([*map(_up, shown), min(LOST.values()) / 2 - 0.08], [*(f"{100 * t:g}" for t in shown), "lost"])
    panel.axhline(-0.05, color="grey", lw=0.6, ls=":")
    panel.set_xlabel("MB sent by a worker")
    panel.grid(alpha=0.25)


def _round(means: Sequence[Row]) -> list[float]:
    """Places on the axis: 1, 2 and 5 times powers of ten."""
    low, high = min(row["megabytes"] for row in means), max(row["megabytes"] for row in means)
    every = [m * 10.0**p for p in range(-3, 6) for m in (1, 2, 5)]
    return [x for x in every if low / 1.3 < x < high * 1.3]


def _up(accuracy: float) -> float:
    """Equal steps for equal ratios of the error."""
    return -math.log10(max(1e-4, 1 - accuracy))


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    methods = [Line2D([], [], color=COLOURS[name], lw=4, label=NAMES[name]) for name in COLOURS]
    marks = [Line2D([], [], color="grey", marker=m, ls="", label=label) for label, m in MARKS.items()]
    l2 = Line2D([], [], color="grey", marker="D", mfc="white", ls="", label="hollow: L2 scale")
    return [*methods, *marks, l2, Line2D([], [], color="black", marker="x", ls="", label="lost")]
