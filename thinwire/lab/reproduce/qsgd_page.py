"""What the rows of the QSGD reproduction say: statements, tables for the page, and the plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thinwire.lab import tasks
from thinwire.lab.intervals import no_loss
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Trend
from thinwire.lab.reproduce.one_model import WORKERS
from thinwire.lab.reproduce.statements import statements as lines

PUBLISHED = {
    "8 bits": "ResNet-152 on ImageNet 76.74, float32 77.0",
    "4 bits": "ResNet-110 on CIFAR-10 94.19, float32 93.86",
    "2 bits": "no figure; AlexNet loses 1.73 points with blocks of 64",
}
PAPER = 16  # workers
RING = ((PAPER - 1) / PAPER) / ((WORKERS - 1) / WORKERS)
"""What float32 sends per step between the paper's workers, over what it sends between ours: an all-reduce."""
BROADCAST = (PAPER - 1) / (WORKERS - 1)
"""The same for QSGD, which sends its message to every other worker."""
BOUNDS = (
    ("variance", "", "variance is within lemma 3.1's bound", "proved"),
    ("non-zeros", "", "levels that are not zero are within lemma 3.1's bound", "proved"),
    ("dense code", "Elias", "Elias' dense code with s = sqrt(n) takes at most 2.8 n + 32 bits", "proved for large n"),
    ("dense code", "rANS", "an entropy code of the same levels takes at most 2.8 n + 32 bits", "no figure"),
    ("sparse code", "", "Elias' sparse code with s = 1 is within theorem 3.2's length", "proved, up to o(1)"),
)


def trends(means: Sequence[Row]) -> list[Trend]:
    """Accuracy and times on each task, bounds on vectors of each source."""
    told = []
    for task in dict.fromkeys(row["task"] for row in means if row["kind"] == "accuracy"):
        at = {(row["kind"], row["label"]): row for row in means if row["task"] == task}
        told += _kept(at, task) + _times(at, task)
    for source in ("Gaussian", "gradient"):
        for kind, word, claim, published in BOUNDS:
            mine = [row for row in means if row["kind"] == kind and row["label"].startswith(source)]
            parts = [row["value"] / row["limit"] for row in mine if word in row["label"]]
            if parts:
                here = f"{min(parts):.2f} to {max(parts):.2f} of it"
                told.append(Trend(source, claim, published, here, max(parts) <= 1))
    return told


def _kept(at: dict[tuple[str, str], Row], task: str) -> list[Trend]:
    exact, told = at.get(("accuracy", "32 bits")), []
    for label, published in PUBLISHED.items():
        row, claim = at.get(("accuracy", label)), f"{label} keep float32's accuracy"
        if row is None or exact is None:
            told.append(Trend(task, claim, published, "not run", None))
            continue
        told.append(Trend(task, claim, published, *no_loss(row["value"], exact["value"], tasks.get(task).tested)))
    return told


def _times(at: dict[tuple[str, str], Row], task: str) -> list[Trend]:
    needs = [at.get((kind, label)) for kind in ("wire", "epoch", "share") for label in ("32 bits", "4 bits")]
    wire, less, epoch, shorter, share, _ = needs
    two, four = at.get(("accuracy", "2 bits")), at.get(("accuracy", "4 bits"))
    told = []
    if two and four:
        more = 100 * (four["bits_per_element"] / two["bits_per_element"] - 1)
        told.append(Trend(task, "4 bits send 77% more than 2 bits", "77%", f"{more:.0f}%", abs(more - 77) < 8))
    if wire and less and epoch and shorter and share:
        part, cut, gain = share["value"], wire["value"] / less["value"], epoch["value"] / shorter["value"]
        published = f"AlexNet, {PAPER} GPUs: over 80%"
        told.append(Trend(task, "float32 spends most time communicating", published, f"{part:.0%}", part > 0.5))
        there = cut * RING / BROADCAST
        here = f"{there:.2f}x between {PAPER} workers ({cut:.1f}x between {WORKERS})"
        told.append(Trend(task, "4 bits cut time on the wire by 4", f"4x, {PAPER} GPUs", here, there > 3.5))
        long = epoch["value"] + (RING - 1) * wire["value"]
        short = shorter["value"] + (BROADCAST - 1) * less["value"]  # and more to decode
        here = f"at most {long / short:.2f}x between {PAPER} workers ({gain:.1f}x between {WORKERS})"
        told.append(Trend(task, "4 bits shorten an epoch", f"2.5x, {PAPER} GPUs", here, long / short > 1))
    return told


def accuracy(means: Sequence[Row], rows: Sequence[Row]) -> str:
    """Accuracy at each width, one table per task."""
    parts = []
    for task in dict.fromkeys(row["task"] for row in means if row["kind"] == "accuracy"):
        mine = [row for row in means if (row["task"], row["kind"]) == (task, "accuracy")]
        body = [
            [
                row["label"],
                f"{row['bits_per_element']:.2f}",
                f"{100 * row['value']:.2f}",
                f"{100 * (row['value'] - mine[0]['value']):+.2f}",
                f"{100 * row['least']:.2f} to {100 * row['most']:.2f}",
            ]
            for row in mine
        ]
        first = next(row for row in rows if row["task"] == task)
        title = f"**{task}**, {first['epochs']} epochs, {mine[0]['seeds']} seeds:\n\n"
        head = ["fields", "bits per element", "accuracy %", "points", "seeds from, to"]
        command = f"thinwire reproduce qsgd --task {task} --save benchmarks/data/qsgd.csv"
        parts.append(title + table(head, body) + where(first, command))
    return "\n\n".join(parts)


def bounds(means: Sequence[Row], rows: Sequence[Row]) -> str:
    """Variance, non-zeros and code lengths beside their bounds."""
    first = next(row for row in rows if row["task"] == "vectors")
    body = [
        [
            row["kind"],
            row["label"],
            f"{row['value']:.5g}",
            f"{row['limit']:.5g}",
            f"{row['value'] / row['limit']:.2f}",
        ]
        for row in means
        if row["task"] == "vectors"
    ]
    return table(["what", "of", "measured", "bound", "part of it"], body, left=2) + where(
        first, "thinwire reproduce qsgd --save benchmarks/data/qsgd.csv"
    )


def times(means: Sequence[Row], _: Sequence[Row]) -> str:
    """Seconds of an epoch and the part of them for communication."""
    at = {(row["task"], row["kind"], row["label"]): row for row in means}
    body = [
        [
            task,
            label,
            *(f"{at[task, what, label]['value']:.3f}" for what in ("wire", "epoch")),
            f"{row['value']:.0%}",
        ]
        for (task, kind, label), row in at.items()
        if kind == "share"
    ]
    return table(["task", "fields", "s on the wire", "s per epoch", "communicating"], body, left=2)


def statements(means: Sequence[Row], _: Sequence[Row]) -> str:
    """Which hold."""
    return lines(trends(means))


SECTIONS = {"accuracy": accuracy, "bounds": bounds, "times": times, "statements": statements}


def plot(means: Sequence[Row], path: Path) -> None:
    """Accuracy and epochs against bits, and every bounded value as a part of its bound."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(9.6, 3.6), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for task in dict.fromkeys(row["task"] for row in means if row["kind"] == "accuracy"):
        mine = [row for row in means if (row["task"], row["kind"]) == (task, "accuracy")]
        bits = [row["bits_per_element"] for row in mine]
        low, high = ([100 * row[name] for row in mine] for name in ("least", "most"))
        left.plot(bits, [100 * row["value"] for row in mine], "o-", label=task)
        left.vlines(bits, low, high, lw=0.8)
    left.set_xscale("log", base=2)
    left.set(xlabel="bits per element", ylabel="test accuracy, %")
    left.set_xticks((2, 4, 8, 16, 32), ("2", "4", "8", "16", "32"))
    left.legend(frameon=False, loc="lower right")
    kinds = list(dict.fromkeys(row["kind"] for row in means if row["task"] == "vectors"))
    for colour, mark, source in (("black", "o", "Gaussian"), ("#0072b2", "^", "gradient")):
        mine = [row for row in means if row["task"] == "vectors" and row["label"].startswith(source)]
        parts = [row["value"] / row["limit"] for row in mine]
        right.plot([kinds.index(row["kind"]) for row in mine], parts, mark, color=colour, mfc="none", label=source)
    right.axhline(1, color="grey", lw=0.8, ls=":")
    right.set_xticks(range(len(kinds)), kinds)
    right.set(ylabel="part of the published bound", ylim=(0, 1.2))
    right.margins(x=0.15)
    right.legend(frameon=False, loc="lower left")
    for panel in (left, right):
        panel.grid(alpha=0.25)
    figure.savefig(path)
