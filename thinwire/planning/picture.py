"""Step time against the rate of the link, one line per method, with the link in question marked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.planning.outlook import pays

if TYPE_CHECKING:
    from thinwire.planning.outlook import Outlook

KINDS = (".svg", ".png", ".pdf")
GAP = 0.045  # between names, as a part of the axis
ROOM = 0.22  # for names, as a part of the rates that are shown


def check_plot(path: Path) -> None:
    """Raise before the work when the plot cannot be drawn."""
    _pyplot()
    if path.suffix not in KINDS:
        raise ValueError(f"{path} is not a plot; write --plot plan.png, .svg or .pdf")


def draw(found: Outlook, path: Path) -> None:
    """A .svg, .png or .pdf file; folders of its path are made."""
    check_plot(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9.6, 5.6))
    axes.set_xscale("log")
    axes.set_yscale("log")
    colours = pyplot.get_cmap("tab10" if len(found.curves) <= 10 else "tab20")
    ends: list[tuple[float, str, Any]] = [(found.computing_ms, "computing", "0.5")]
    first = last = found.rate
    for number, (name, points) in enumerate(found.curves.items()):
        rates, times = [rate for rate, _ in points], [ms for _, ms in points]
        axes.plot(rates, times, "--" if name.startswith("ddp") else "-", color=colours(number), lw=1.8)
        ends.append((times[0], name, colours(number)))
        first, last = min(first, *rates), max(last, *rates)
    axes.set_xlim(first * (first / last) ** ROOM, last * 1.2)  # room for the names, to the left of the lines
    axes.plot([first, last * 1.2], [found.computing_ms] * 2, ":", color="0.6", lw=1)
    axes.axvline(found.rate, color="0.3", lw=1)
    axes.text(found.rate, 0.98, f"  {pays(found.rate)}", transform=axes.get_xaxis_transform(), va="top", color="0.3")
    axes.set(xlabel="rate of every host's link", ylabel="ms per step")
    axes.set_title(found.title, fontsize=9, loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: pays(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in "25" else "")
    _label(axes, ends, first)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _label(axes: Any, ends: list[tuple[float, str, Any]], first: float) -> None:
    """Names to the left of where the lines begin, moved apart where they would overlap."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    at, moved = -1.0, []
    for ms, name, colour in sorted(ends, key=lambda one: one[0]):
        at = max((math.log(ms) - low) / (high - low), at + GAP)
        moved.append((at, name, colour))
    top = 1.0 - GAP / 2
    for place, name, colour in reversed(moved):  # and down again where they have been pushed out at the top
        shown = min(place, top)
        top = shown - GAP
        axes.text(
            first * 0.9,
            shown,
            name,
            transform=axes.get_xaxis_transform(),
            ha="right",
            va="center",
            color=colour,
            size=9,
        )


def _pyplot() -> Any:
    try:
        import matplotlib  # noqa: PLC0415  (an extra)

        matplotlib.use("agg")
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("a plot needs matplotlib; write pip install 'thinwire[lab]'") from error
    return pyplot
