"""ECQ-SGD's traffic on images: how many times less than 32-bit SGD it sends before accuracy is lost.

Four workers train one residual net of 18,322 parameters. "s=10" has ten levels and one L2 scale for the whole
gradient, rANS-coded, once without a memory (QSGD) and once with the sum of all past errors (ECQ-SGD, alpha = 0.1,
beta = 1). "s=6" sends still less, with alpha = 0.07. `ratio` is that of 32 bits per element to a message;
`ring_ratio` is that of what a worker sends in a ring all-reduce of float32 to all that it sends to its three peers,
which makes it half as large for four workers.

Reference: Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed
optimization", ICML 2018, arXiv 1806.08054. The paper itself was not available; this follows accounts of it.

Departs from the paper: a small net on digits or Fashion-MNIST in place of ResNet-20 on CIFAR-10, and minutes of
training. All methods use the learning rate of float32. Levels, alpha and beta are ours, chosen on
Fashion-MNIST with seed 0. Codes are rANS in place of Huffman's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import ClassVar, final

from thinwire.codecs.rans import Rans
from thinwire.compressors.one_bit import OneBit
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.terngrad import TernGrad
from thinwire.core.channel import Channel
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend
from thinwire.lab.reproduce.one_model import FLOAT, WORKERS, check, every
from thinwire.lab.reproduce.statements import statements
from thinwire.memory.error_feedback import ErrorFeedback

WHOLE = 18_322  # parameters of the net: one block
CHANNELS = {
    "32-bit": FLOAT,
    "1-bit SGD": Channel(OneBit(), ErrorFeedback()),
    "TernGrad": Channel(TernGrad()),
    "QSGD s=10": Channel(Qsgd(levels=10, norm="l2", block=WHOLE), codec=Rans()),
    "ECQ-SGD s=10": Channel(Qsgd(levels=10, norm="l2", block=WHOLE), ErrorFeedback(0.1, 1.0), Rans()),
    "ECQ-SGD s=6": Channel(Qsgd(levels=6, norm="l2", block=WHOLE), ErrorFeedback(0.07, 1.0), Rans()),
}
EPOCHS = {"digits": 20, "fashion": 3}
TIMES = 80  # less than 32-bit SGD, as published
NEAR = 0.3  # points below float32 that count as none: one of the 360 digits is 0.28
KEY = ("task", "split", "method")


@final
@dataclass(frozen=True)
class EcqTraffic(Reproduction):
    """Accuracy against bits sent."""

    name: ClassVar[str] = "ecq-traffic"
    paper: ClassVar[str] = "Wu et al. 2018, arXiv 1806.08054, CIFAR-10"
    claims: ClassVar[str] = "ECQ-SGD sends over 80 times less than 32-bit SGD at no loss of accuracy."
    columns: ClassVar[dict[str, str]] = {
        "task": "",
        "method": "",
        "accuracy": ".2%",
        "points": "+.2f",
        "least": ".2%",
        "most": ".2%",
        "loss": ".4f",
        "bits_per_element": ".3f",
        "ratio": ".1f",
        "ring_ratio": ".1f",
        "seeds": "d",
    }
    sections: ClassVar[tuple[str, ...]] = ("accuracy", "statements")

    def check(self, settings: Settings) -> Settings:
        """Task, numbers and methods; epochs and seeds are filled in."""
        return check(self.name, settings, EPOCHS, CHANNELS)

    def run(self, settings: Settings, say: Say) -> list[Row]:
        """Every method with every seed."""
        s = self.check(settings)
        rows: list[Row] = []
        count, runs = every(s, CHANNELS)
        for number, (name, run, row) in enumerate(runs, 1):
            head: Row = {"task": s.task, "split": s.split, "method": name, "seed": run.seed, "epochs": run.epochs}
            rows.append({**head, **row})
            say(number, count, name)
        return rows

    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """Means over seeds, with points above float32."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
        means = []
        for (task, _, method), several in groups.items():
            right = [row["accuracy"] for row in several]
            bits = fmean(row["bits_per_element"] for row in several)
            float32 = [row["accuracy"] for row in rows if (row["task"], row["method"]) == (task, "32-bit")]
            means.append(
                {
                    "task": task,
                    "method": method,
                    "accuracy": fmean(right),
                    "points": 100 * (fmean(right) - fmean(float32)) if float32 else None,
                    "least": min(right),
                    "most": max(right),
                    "loss": fmean(row["loss"] for row in several),
                    "bits_per_element": bits,
                    "ratio": 32 / bits,
                    "ring_ratio": 1.0 if method == "32-bit" else 2 / WORKERS * 32 / bits,
                    "seeds": len(several),
                }
            )
        return means

    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """The cut in traffic, and memory against none, on each task."""
        means = self.summary(rows)
        return [trend for task in dict.fromkeys(row["task"] for row in means) for trend in _trends(means, task)]

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Accuracy against how many times less is sent, with one panel per task."""
        from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

        means = self.summary(rows)
        names = list(dict.fromkeys(row["task"] for row in means))
        figure = Figure(figsize=(4.6 * len(names) + 0.4, 3.8), dpi=110, layout="constrained")
        for task, panel in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
            for row in (row for row in means if row["task"] == task):
                colour = "#0072b2" if row["method"].startswith("ECQ") else "#d55e00"
                colour = "black" if row["method"] == "32-bit" else colour
                panel.vlines(row["ratio"], 100 * row["least"], 100 * row["most"], color=colour, lw=0.8)
                panel.plot(row["ratio"], 100 * row["accuracy"], "o", color=colour)
                text, at = row["method"], (row["ratio"], 100 * row["accuracy"])
                panel.annotate(text, at, xytext=(5, 4), textcoords="offset points", fontsize=7)
            panel.axvline(TIMES, color="grey", lw=0.8, ls=":")
            panel.set_xscale("log")
            panel.set_xlim(0.6, 800)
            panel.set_xticks((1, 10, TIMES), ("1", "10", str(TIMES)))
            panel.set(title=task, xlabel="times less than 32 bits per element", ylabel="test accuracy, %")
            panel.grid(alpha=0.25)
        figure.savefig(path)

    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """Means, with one table per task, and the statements."""
        means = self.summary(rows)
        parts = []
        for task in dict.fromkeys(row["task"] for row in means):
            body = [_cells(row) for row in means if row["task"] == task]
            first = next(row for row in rows if row["task"] == task)
            title = f"**{task}**, {first['epochs']} epochs, {first['steps']} steps, {body[0][-1]} seeds:\n\n"
            command = f"thinwire reproduce ecq-traffic --task {task} --save benchmarks/data/ecq-traffic.csv"
            parts.append(title + table(HEAD, [cells[:-1] for cells in body]) + where(first, command))
        return {"accuracy": "\n\n".join(parts), "statements": statements(self.trends(rows))}


HEAD = ["method", "accuracy %", "seeds from, to", "points", "loss", "bits per element", "less", "less than a ring"]


def _cells(row: Row) -> list[str]:
    spread = f"{100 * row['least']:.2f} to {100 * row['most']:.2f}"
    points = "" if row["points"] is None else f"{row['points']:+.2f}"
    numbers = [
        f"{row['loss']:.4f}",
        f"{row['bits_per_element']:.3f}",
        f"{row['ratio']:.1f}x",
        f"{row['ring_ratio']:.1f}x",
    ]
    return [row["method"], f"{100 * row['accuracy']:.2f}", spread, points, *numbers, str(row["seeds"])]


def _trends(means: Sequence[Row], task: str) -> list[Trend]:
    at = {row["method"]: row for row in means if row["task"] == task and row["points"] is not None}
    told = []
    for claim, published, needs, judge in STATEMENTS:
        if all(name in at for name in needs):
            told.append(Trend(task, claim, published, *judge(*(at[name] for name in needs))))
        else:
            told.append(Trend(task, claim, published, "not run", None))
    return told


def _over_80(ecq: Row) -> tuple[str, bool]:
    return _cut(ecq), ecq["ratio"] > TIMES and ecq["points"] >= -NEAR


def _over_100(ecq: Row) -> tuple[str, bool]:
    return _cut(ecq), ecq["ratio"] > 100 and ecq["points"] >= -NEAR


def _better(ecq: Row, qsgd: Row) -> tuple[str, bool]:
    losses = f"loss {ecq['loss']:.4f} against {qsgd['loss']:.4f}"
    return f"{losses}, {ecq['points']:+.2f} against {qsgd['points']:+.2f} points", ecq["loss"] < qsgd["loss"]


def _least(ecq: Row, *others: Row) -> tuple[str, bool]:
    most = max(row["ratio"] for row in others)
    return f"{ecq['ratio']:.0f}x, the others at most {most:.0f}x", ecq["ratio"] > most


def _cut(row: Row) -> str:
    return f"{row['ratio']:.0f}x, {row['points']:+.2f} points"


STATEMENTS: tuple[tuple[str, str, tuple[str, ...], Callable[..., tuple[str, bool]]], ...] = (
    (f"ECQ-SGD sends over {TIMES} times less at no loss of accuracy", f"> {TIMES}x", ("ECQ-SGD s=10",), _over_80),
    ("ECQ-SGD sends 100 times less at no loss of accuracy", "up to 100x", ("ECQ-SGD s=6",), _over_100),
    ("with as many levels ECQ-SGD is better than QSGD", "no figure", ("ECQ-SGD s=10", "QSGD s=10"), _better),
    ("1-bit SGD and TernGrad send more", "no figure", ("ECQ-SGD s=10", "1-bit SGD", "TernGrad"), _least),
)
"""Claim, what was published, the methods it takes, and the measured words with the verdict."""
