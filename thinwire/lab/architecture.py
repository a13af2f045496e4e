"""The picture of docs/architecture.md: the way of a gradient from backward to the wire and back, and the drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INK, PALE, WIRE = "#222222", "#eef2f7", "#fdf1e3"
DRIVERS = (
    ("torch hooks", "attach · engine/hooks.py"),
    ("DDP's hook", "ddp_hook · engine/ddp.py"),
    ("training on the clock", "simulate · sim/worker.py"),
)
STEPS = (
    ("Driver", "engine/driver.py", "tells what happens:\na gradient is there,\nbackward ends,\na step begins, ends"),
    ("Schedule", "engine/schedules", "decides when:\ngradients, models,\npairs, late, outer,\nserved"),
    ("Runner", "engine/runner.py", "a round of a bucket:\nagree, then exchange\nchunk by chunk"),
    ("Exchange", "exchange/", "decides who talks\nto whom; its channels:\nmemory, compressor,\ncode"),
    ("Transport", "engine/transport.py", "lanes that keep\nthe order, a watch\nover the others"),
)
TRANSPORTS = (
    ("real processes", "comm/processes.py · gloo, nccl"),
    ("the clock", "comm/clock.py · engine/virtual.py"),
)


def plot(path: Path) -> None:
    """Draw it."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  (an extra)

    figure, axes = plt.subplots(figsize=(11, 5.4))
    axes.set_xlim(0, 110)
    axes.set_ylim(0, 54)
    axes.axis("off")
    for number, (title, where) in enumerate(DRIVERS):
        _box(axes, 2 + 37 * number, 45, 32, 7, title, where, PALE)
        _arrow(axes, (18 + 37 * number, 45), (7 + 5 * number, 38))
    for number, (title, where, text) in enumerate(STEPS):
        left = 2 + 21.6 * number
        _box(axes, left, 22, 19, 16, title, where, "white", text)
        if number:
            _arrow(axes, (left - 2.6, 32), (left, 32))
            _arrow(axes, (left, 26), (left - 2.6, 26))
    flow = "→ launch, await          ← results, which become p.grad or the model"
    axes.text(46, 19, flow, ha="center", color=INK, fontsize=9)
    for number, (title, where) in enumerate(TRANSPORTS):
        left = 20 + 40 * number
        _box(axes, left, 6, 34, 7, title, where, WIRE)
        _arrow(axes, (97, 22), (left + 24, 13))
    axes.text(55, 1.5, "the same coroutines, the same bytes, the same bits", ha="center", color=INK, fontsize=9)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def _box(
    axes: Any, x: float, y: float, width: float, height: float, title: str, where: str, fill: str, text: str = ""
) -> None:
    from matplotlib.patches import FancyBboxPatch  # noqa: PLC0415  (an extra)

    style = "round,pad=0,rounding_size=0.8"
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=fill, edgecolor=INK, linewidth=0.9)
    )
    middle, top = x + width / 2, y + height
    axes.text(middle, top - 2.4, title, ha="center", va="center", fontsize=10.5, weight="bold", color=INK)
    axes.text(middle, top - 5.1, where, ha="center", va="center", fontsize=7.5, color="#555555", family="monospace")
    if text:
        axes.text(middle, top - 7.2, text, ha="center", va="top", fontsize=8, color=INK, linespacing=1.35)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.9})
