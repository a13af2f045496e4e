"""ECQ-SGD, figure 2: loss and distance to the optimum on Syn-256, Syn-512 and Syn-1024 for 32 bits, QSGD and ECQ-SGD.

Syn-d is a linear regression with d features and 10,000 samples:

    y = <w*, x> + e,    loss(w) = mean (<w, x> - y)^2 / 2,    distance(w) = |w - w*|

Four workers each draw 64 samples per step, for 1,500 steps with a rate of 0.02. Both quantisers have 4 levels and one
L2 scale per gradient; ECQ-SGD has alpha = 0.2, beta = 0.9. Loss and distance are means over ten of the last 100
steps, and over seeds. Bits are those of scale and levels in the messages sent, without the 32 bytes of thinwire's
header: once in fields of equal width, once in Elias' sparse code, which loses nothing and so is the same run.

Reference: Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed
optimization", ICML 2018, arXiv 1806.08054, figure 2. The paper itself was not available; this follows accounts of it.

Departs from the paper: no account gives how x, w* and e are drawn, the workers, the batch, alpha or
beta. Here x and w* are standard normal, e is 0.1 times that, and alpha and beta are those of a public port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import ClassVar, final

import torch

from thinwire.codecs.elias import EliasSparse
from thinwire.compressors.identity import Identity
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.payload import HEADER
from thinwire.core.types import Layout
from thinwire.exchange.all_gather import AllGather
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend, check_methods
from thinwire.lab.reproduce.parallel import each
from thinwire.lab.reproduce.statements import statements
from thinwire.lab.world import World
from thinwire.memory.error_feedback import ErrorFeedback

SAMPLES, NOISE, WORKERS, BATCH, LR, LEVELS = 10_000, 0.1, 4, 64, 0.02, 4
WAYS = ("32-bit", "QSGD", "ECQ-SGD")
CODED = ", coded"
COLOURS = {"32-bit": "black", "QSGD": "#d55e00", "ECQ-SGD": "#0072b2"}


@dataclass(frozen=True)
class Run:
    """What decides the numbers of a run."""

    d: int
    way: str
    seed: int
    steps: int


@final
@dataclass(frozen=True)
class EcqFig2(Reproduction):
    """Regressions of `sets` features, trained for `steps`."""

    name: ClassVar[str] = "ecq-fig2"
    paper: ClassVar[str] = "Wu et al. 2018, arXiv 1806.08054, figure 2"
    claims: ClassVar[str] = "ECQ-SGD follows 32-bit SGD where QSGD stays behind: Syn-256, Syn-512, Syn-1024."
    columns: ClassVar[dict[str, str]] = {
        "set": "",
        "method": "",
        "loss": ".4g",
        "distance": ".4f",
        "bits_per_element": ".3f",
    }
    sections: ClassVar[tuple[str, ...]] = ("rows", "statements")
    sets: tuple[int, ...] = (256, 512, 1024)
    steps: int = 1500

    def check(self, settings: Settings) -> Settings:
        """Methods and numbers; data and length are the reproduction's own."""
        if settings.epochs is not None or settings.data is not None or (settings.task, settings.split) != OWN:
            raise ValueError("ecq-fig2 draws its own samples; leave --task, --split, --epochs and --data out")
        check_methods(settings.methods, WAYS)
        seeds = 3 if settings.seeds is None else settings.seeds
        if seeds < 1 or settings.jobs < 1:
            raise ValueError("seeds and jobs are positive numbers; write --seeds 3 --jobs 2")
        return replace(settings, seeds=seeds)

    def run(self, settings: Settings, say: Say) -> list[Row]:
        """Means over seeds: one row per set and method, for quantisers one with plain fields and one coded."""
        s = self.check(settings)
        assert s.seeds is not None
        ways = [way for way in WAYS if not s.methods or way in s.methods]
        runs = [Run(d, way, seed, self.steps) for d in self.sets for way in ways for seed in range(s.seeds)]
        rows: list[Row] = []
        several: list[tuple[float, float, float]] = []
        for number, (run, ended) in enumerate(zip(runs, each(descend, runs, s.jobs), strict=True), 1):
            say(number, len(runs), f"Syn-{run.d} {run.way}")
            several.append(ended)
            if len(several) == s.seeds:
                loss, distance, bits = (fmean(values) for values in zip(*several, strict=True))
                rows += _rows(run, loss, distance, bits)
                several = []
        return rows

    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, with the columns of the summary."""
        return [{name: row[name] for name in self.columns} for row in rows]

    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """What the figure shows, set by set."""
        at = {(row["set"], row["method"]): row for row in rows}
        told = []
        for name in dict.fromkeys(row["set"] for row in rows):
            pairs = [at.get((name, way)) for way in WAYS]
            for what, claim in CLAIMS.items():
                exact, qsgd, ecq = ((row[what] if row else None) for row in pairs)
                if exact is None or qsgd is None or ecq is None:
                    told.append(Trend(name, claim, "curves, no figures", "not run", None))
                    continue
                here = f"{_above(ecq, exact)} ECQ-SGD, {_above(qsgd, exact)} QSGD"
                told.append(Trend(name, claim, "curves, no figures", here, ecq - exact < (qsgd - exact) / 2))
        return told

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Loss and distance of every set."""
        from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

        figure = Figure(figsize=(8, 3.4), dpi=110, layout="constrained")
        sets = list(dict.fromkeys(row["set"] for row in rows))
        for panel, what in zip(figure.subplots(1, 2), ("loss", "distance"), strict=True):
            for shift, way in zip((-0.27, 0.0, 0.27), WAYS, strict=True):
                mine = {row["set"]: row[what] for row in rows if row["method"] == way}
                at = [sets.index(name) + shift for name in mine]
                panel.bar(at, list(mine.values()), 0.25, color=COLOURS[way], label=way)
            panel.set_xticks(range(len(sets)), sets)
            panel.set_ylabel({"loss": "loss at the end", "distance": "distance to the optimum at the end"}[what])
            panel.grid(axis="y", alpha=0.25)
        figure.axes[1].legend(frameon=False)
        figure.savefig(path)

    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """All rows, and what the figure shows."""
        body = [
            [row["set"], row["method"], f"{1000 * row['loss']:.3f}", f"{row['distance']:.4f}", _bits(row)]
            for row in rows
        ]
        head = ["set", "method", "loss, thousandths", "distance", "bits per element"]
        made = table(head, body, left=2) + where(rows[0], "thinwire reproduce ecq-fig2")
        return {"rows": made, "statements": statements(self.trends(rows))}


OWN = (Settings.task, Settings.split)  # where the reader asked for nothing
CLAIMS = {
    "loss": "ECQ-SGD follows 32-bit SGD's loss: less than half of QSGD's excess",
    "distance": "QSGD stays farther from the optimum: ECQ-SGD has less than half of its excess",
}


def channel(way: str, d: int) -> Channel:
    """What goes over the wire; levels in Elias' sparse code."""
    if way == "32-bit":
        return Channel(Identity())
    quantiser = Qsgd(levels=LEVELS, norm="l2", block=d)
    if way == "QSGD":
        return Channel(quantiser, codec=EliasSparse())
    return Channel(quantiser, ErrorFeedback(alpha=0.2, beta=0.9), EliasSparse())


def descend(run: Run) -> tuple[float, float, float]:
    """Loss and distance at the end, and bits per element."""
    g = torch.Generator().manual_seed(run.seed)
    x, truth = torch.randn(SAMPLES, run.d, generator=g), torch.randn(run.d, generator=g)
    y = x @ truth + NOISE * torch.randn(SAMPLES, generator=g)
    exchange, w = AllGather(channel(run.way, run.d)), torch.zeros(run.d)
    world = World(exchange, Layout.flat(run.d), WORKERS, run.seed, once=True)
    ends = []
    for step in range(run.steps):
        picked = torch.randint(SAMPLES, (WORKERS, BATCH), generator=g)
        some = x[picked]
        error = (some @ w) - y[picked]
        w -= LR * world.step(torch.einsum("rb,rbd->rd", error, some) / BATCH)
        if step >= run.steps - 100 and step % 10 == 9:
            ends.append((float((x @ w - y).square().mean() / 2), float((w - truth).norm())))
    loss, distance = (fmean(values) for values in zip(*ends, strict=True))
    return loss, distance, world.message_bits - 8 * HEADER.size / run.d  # as papers count them


def _rows(run: Run, loss: float, distance: float, bits: float) -> list[Row]:
    """One row, or two: one for plain fields and one for the code."""
    row: Row = {"set": f"Syn-{run.d}", "method": run.way, "loss": loss, "distance": distance}
    if run.way == "32-bit":
        return [row | {"bits_per_element": bits}]
    fields = Channel(Qsgd(levels=LEVELS, norm="l2", block=run.d)).nbytes(Layout.flat(run.d)) - HEADER.size
    return [
        row | {"bits_per_element": 8 * fields / run.d},
        row | {"method": run.way + CODED, "bits_per_element": bits},
    ]


def _above(value: float, exact: float) -> str:
    return f"{100 * (value / exact - 1):+.1f}%"


def _bits(row: Row) -> str:
    return f"{row['bits_per_element']:.3f}"
