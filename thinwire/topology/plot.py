"""A graph and its W beside each other, with matplotlib: an SVG, PNG or PDF file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.topology.mixing import gap
from thinwire.topology.picture import edges

if TYPE_CHECKING:
    from thinwire.topology.base import Topology


def check_plot(path: Path) -> None:
    """Raise before the work when the plot cannot be drawn."""
    _pyplot()
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"{path} is not a plot; write --plot graph.svg, .png or .pdf")


def plot(topology: Topology, n: int, path: Path) -> None:
    """The ranks in a circle, and W of step 0."""
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 4.6))
    turns = [2 * math.pi * i / n for i in range(n)]
    x, y = [math.sin(turn) for turn in turns], [math.cos(turn) for turn in turns]
    thin = 1.2 if n <= 32 else 0.3
    for i, j in edges(topology, n).nonzero().tolist():
        left.plot([x[i], x[j]], [y[i], y[j]], color="tab:blue", lw=thin, alpha=0.6, zorder=1)
    left.scatter(x, y, s=200 if n <= 32 else 8, color="white", edgecolors="tab:blue", zorder=2)
    for i in range(n if n <= 32 else 0):
        left.text(x[i], y[i], str(i), ha="center", va="center", fontsize=8, zorder=3)
    left.set(aspect="equal", title=f"{topology.name}, {n} ranks, gap {gap(topology, n):.5f}")
    left.axis("off")
    shown = right.imshow(topology.matrix(n).numpy(), cmap="Blues", vmin=0)
    right.set(title="W, step 0", xlabel="from rank j", ylabel="rank i takes")
    figure.colorbar(shown, ax=right)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib  # noqa: PLC0415  (an extra)
    except ImportError as missing:
        raise ValueError("plots need matplotlib; write pip install 'thinwire[lab]'") from missing
    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot
