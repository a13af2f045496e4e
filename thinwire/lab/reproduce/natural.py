"""Natural compression and natural dithering: variance and bits on vectors, then accuracy on the digits.

    natural     each element rounded at random to a power of two: 9 bits, no scale
    s=...       natural dithering: s powers of two of a vector's length and zero
    even        what natural dithering is compared with: u equal steps of the length, which is QSGD's quantiser

On vectors `variance` is E|Q(x) - x|^2 / |x|^2, and `bias` is the squared length of the draws' mean error over what
it would be without bias (so 1). Three numbers stand beside s levels of natural dithering: the variance of u = s
even levels, that of u = 2^(s-1), and the least u whose variance is no larger. In training, both directions are
compressed.

Reference: Horvath, Ho, Horvath, Sahu, Canini, Richtarik, "Natural compression for distributed deep learning", 2019,
arXiv 1905.10988: theorems 3, 7 and 8, and figure 7.

Departs from the paper: a net of 26,122 parameters on 1,437 images in place of ResNet, AlexNet and VGG; fields have
at most 127 even levels, where its figure 7 has 128. Neither the switch nor the times are reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

import torch
from torch import Tensor

from thinwire.compressors.natural import Natural
from thinwire.compressors.natural_dithering import NaturalDithering
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.types import Key, Layout
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.lab.records import Row
from thinwire.lab.reproduce.natural_judge import LEVELS, STATEMENTS, TRAINED, TRAINING, VECTORS, WORST
from thinwire.lab.reproduce.panels import Line, Panel, draw
from thinwire.lab.reproduce.qsgd_facts import SOURCES
from thinwire.lab.reproduce.replicas import Plan, train
from thinwire.lab.reproduce.study import Run, Study

DRAWS = 200
MOST = 127  # even levels
SLACK = 1.01  # what a finite mean may add to a variance
COMPRESSORS: dict[str, Compressor] = {
    "natural": Natural(),
    "s=8": NaturalDithering(levels=8),
    "127 even": Qsgd(levels=MOST, norm="l2"),
}
EMPTY: Row = dict.fromkeys(("error", "bias", "bound", "same", "even", "needed", "ratio", "accuracy", "loss"))


def spread(q: Compressor, x: Tensor, seed: int) -> tuple[float, float]:
    """The variance over the squared length, and the bias relative to that of chance alone."""
    layout, total, lost = Layout.flat(x.numel()), torch.zeros_like(x), 0.0
    for step in range(DRAWS):
        off = q.decode(q.encode(x, layout, Key(seed, step)), layout) - x
        total += off
        lost += float(off.square().sum()) / DRAWS
    return lost / float(x.square().sum()), float(total.square().sum()) / (DRAWS * lost)


def even(levels: int, x: Tensor, seed: int) -> float:
    """The variance with that many equal steps."""
    return spread(Qsgd(levels=levels, norm="l2", block=None), x, seed)[0]


def needed(variance: float, x: Tensor, seed: int) -> int:
    """The fewest equal steps with at most this variance and a hundredth."""
    low, high = 1, MOST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if even(middle, x, seed) <= SLACK * variance else (middle + 1, high)
    return low


def vector(case: str, seed: int) -> Tensor:
    """The vector of a case."""
    if case == WORST:
        return torch.full((1024,), 4 / 3)
    source, _, length = case.partition(", d=")
    return SOURCES[source](int(length), seed)


@final
class NaturalPaper(Study):
    """Powers of two."""

    name: ClassVar[str] = "natural"
    paper: ClassVar[str] = "Horvath et al. 2019, arXiv 1905.10988"
    claims: ClassVar[str] = (
        "Rounding to powers of two takes 9 bits and adds little variance; few powers do the work of many even levels."
    )
    cases: ClassVar[dict[str, tuple[str, ...]]] = {
        WORST: ("natural",),
        **dict.fromkeys(VECTORS, ("natural", *(f"s={s}" for s in LEVELS))),
        TRAINING: TRAINED,
    }
    epochs: ClassVar[int | None] = 12
    main: ClassVar[str] = "error"
    empty: ClassVar[str] = ""
    columns: ClassVar[dict[str, str]] = {
        "case": "",
        "method": "",
        "error": ".3g",
        "bound": ".3g",
        "same": ".3g",
        "even": ".3g",
        "needed": ".0f",
        "ratio": ".2f",
        "accuracy": ".2%",
        "loss": ".3g",
    }
    heads: ClassVar[dict[str, str]] = {
        "error": "variance",
        "same": "of s even levels",
        "even": "of 2^(s-1) even levels",
        "needed": "even levels for this variance",
        "ratio": "times smaller than float32",
        "loss": "training loss",
    }
    statements = STATEMENTS

    def work(self, run: Run) -> list[Row]:
        """A vector's variances, or a training."""
        row = self._train(run) if run.case == TRAINING else self._measure(run)
        return [{"step": 1, "steps": 1, **EMPTY, **row}]

    def _measure(self, run: Run) -> Row:
        x = vector(run.case, run.seed)
        d = x.numel()
        if run.method == "natural":
            q: Compressor = Natural()
            row: Row = {}
        else:
            s = int(run.method.removeprefix("s="))
            q = NaturalDithering(levels=s, block=None)
            row = {"same": even(s, x, run.seed), "even": even(2 ** (s - 1), x, run.seed)}
        error, bias = spread(q, x, run.seed)
        if row:
            row["needed"] = needed(error, x, run.seed)
        ratio = 4 * d / q.encode(x, Layout.flat(d), Key(run.seed)).body.numel()
        return row | {"error": error, "bias": bias, "bound": q.omega(d), "ratio": ratio}

    def _train(self, run: Run) -> Row:
        how = AllReduce() if run.method == "float32" else ScatterGather(Channel(COMPRESSORS[run.method]))
        plan = Plan(run.epochs, run.seed, lr=0.2)
        done = train(how, plan)
        both = 64 * (plan.workers - 1) / plan.workers  # bits of float32, there and back, per element and step
        return {"ratio": both / done["bits"], "accuracy": done["accuracy"], "loss": done["loss"]}

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Variance against levels, then accuracy."""
        means = self.summary(rows)
        panels = [_variance(case, [row for row in means if row["case"] == case]) for case in VECTORS]
        draw([*panels, _accuracy([row for row in rows if row["case"] == TRAINING])], path)


def _variance(case: str, rows: Sequence[Row]) -> Panel:
    at = {int(row["method"].removeprefix("s=")): row for row in rows if row["method"] != "natural"}
    steps = {s: row["same"] for s, row in at.items()} | {2 ** (s - 1): row["even"] for s, row in at.items()}
    lines = [
        Line("natural dithering", [math.log2(s) for s in at], [row["error"] for row in at.values()], 2),
        Line("even levels", [math.log2(u) for u in sorted(steps)], [steps[u] for u in sorted(steps)], 1),
    ]
    flat = [row["error"] for row in rows if row["method"] == "natural"]
    if flat:
        lines.append(Line("natural compression", [1, LEVELS[-1] - 1], 2 * flat, 3, dashed=True))
    return Panel(case, "log2 of the levels", "variance / squared length", lines, log_y=True)


def _accuracy(rows: Sequence[Row]) -> Panel:
    """The accuracy of every seed."""
    lines = []
    for place, method in enumerate(TRAINED):
        found = [row["accuracy"] for row in rows if row["method"] == method and row["accuracy"] is not None]
        lines.append(Line("_", [place] * len(found), found, place, marks=True))
    return Panel("digits, each seed", "", "test accuracy", lines, ticks=TRAINED)
