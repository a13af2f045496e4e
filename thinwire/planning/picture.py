"""Step time against the rate of the link, one line per method, with the link in question marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.planning.outlook import pays

if TYPE_CHECKING:
    from thinwire.planning.outlook import Outlook

KINDS = (".svg", ".png", ".pdf")
GAP = 0.045  # between labels, as a part of the axis


def check_plot(path: Path) -> None:
    """Raise before the work when the plot cannot be drawn."""
    _pyplot()
    if path.suffix not in KINDS:
        raise ValueError(f"{path} is not a plot; write --plot plan.png, .svg or .pdf")


def draw(found: Outlook, path: Path) -> None:
    """A .svg, .png or .pdf file."""
    check_plot(path)
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9.6, 5.6))
    axes.set_xscale("log")
    axes.set_yscale("log")
    colours = pyplot.get_cmap("tab10" if len(found.curves) <= 10 else "tab20")
    ends = []
    for number, (name, points) in enumerate(found.curves.items()):
        rates, times = [rate for rate, _ in points], [ms for _, ms in points]
        dash = "--" if name.startswith("ddp") else "-"
        axes.plot(rates, times, dash, color=colours(number), lw=1.8)
        ends.append((times[0], name, colours(number)))
    axes.axhline(found.computing_ms, color="0.6", lw=1, ls=":")
    axes.axvline(found.rate, color="0.3", lw=1)
    axes.set(xlabel="rate of every host's link", ylabel="ms per step")
    axes.set_title(found.title, fontsize=10, loc="left")
    axes.text(found.rate, 0.99, f" {pays(found.rate)}", transform=axes.get_xaxis_transform(), va="top", color="0.3")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high)
    axes.text(high, found.computing_ms, "computing ", ha="right", va="bottom", color="0.5", fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: pays(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    _label(axes, ends)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _label(axes: Any, ends: list[tuple[float, str, Any]]) -> None:
    """Names to the left of where the lines begin, moved apart where they would overlap."""
    to_part = axes.transAxes.inverted().transform
    places = [(to_part(axes.transData.transform((1.0, ms)))[1], name, colour) for ms, name, colour in ends]
    at = -1.0
    moved = []
    for place, name, colour in sorted(places, key=lambda one: one[0]):
        at = max(place, at + GAP)
        moved.append([at, name, colour])
    over = moved[-1][0] - 1.0
    if over > 0:  # push down from the top
        top = 1.0
        for one in reversed(moved):
            one[0] = min(one[0], top)
            top = one[0] - GAP
    for place, name, colour in moved:
        axes.text(-0.085, place, name, transform=axes.transAxes, ha="right", va="center", color=colour, fontsize=9)


def _pyplot() -> Any:
    try:
        import matplotlib  # noqa: PLC0415  (an extra)

        matplotlib.use("agg")
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("a plot needs matplotlib; write pip install 'thinwire[lab]'") from error
    return pyplot
