"""ECQ-SGD, figure 3: where the time of 1,000 iterations on Syn-20K goes, and the test loss they reach.

There are two hosts of a network lab, with one process and one core each and uplinks of 50 Mbit/s; the runs are in
syn_20k. 32-bit SGD is a ring all-reduce; QSGD and ECQ-SGD send one L2 scale and rANS-coded levels to every other
host. The number after a name is s, its levels.

Reference: Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed
optimization", ICML 2018, arXiv 1806.08054, figure 3. The paper itself was not available; this follows accounts of it.

Departs from the paper: no account gives how samples are drawn, the hosts, link, batch, learning rate, s, alpha or
beta. Codes are rANS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import ClassVar, final

from thinwire.lab.launch import launch
from thinwire.lab.markdown import table, where
from thinwire.lab.net import Network, tools
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend, check_methods
from thinwire.lab.reproduce.statements import statements
from thinwire.lab.reproduce.syn_20k import STAGES, Job, descend

TASK, HOSTS, RATE = "Syn-20K", 2, "50mbit"
WAYS = ("32-bit", "QSGD-16", "QSGD-64", "QSGD-127", "ECQ-SGD-16", "ECQ-SGD-64")
OWN = (Settings.task, Settings.split)  # where the reader asked for nothing
NEAR = 0.05  # of the loss, which counts as similar
COLOURS = dict(zip(STAGES, ("#bbbbbb", "#e69f00", "#d55e00", "#0072b2"), strict=True))
FIGURES = ("seconds", *(f"{stage}_s" for stage in STAGES), "loss", "mb_sent")


@final
@dataclass(frozen=True)
class EcqFig3(Reproduction):
    """`job` holds the sizes; its methods and seeds are those of the settings."""

    name: ClassVar[str] = "ecq-fig3"
    paper: ClassVar[str] = "Wu et al. 2018, arXiv 1806.08054, figure 3"
    claims: ClassVar[str] = "ECQ-SGD reaches 32-bit SGD's test loss in less time than 32-bit SGD and QSGD: Syn-20K."
    columns: ClassVar[dict[str, str]] = {
        "method": "",
        "seconds": ".2f",
        **{f"{stage}_s": ".2f" for stage in STAGES},
        "loss": ".5f",
        "mb_sent": ".1f",
        "seeds": "d",
    }
    sections: ClassVar[tuple[str, ...]] = ("times", "statements")
    job: Job = field(default_factory=Job)

    def check(self, settings: Settings) -> Settings:
        """Methods and numbers; data and length are the reproduction's own."""
        if settings.epochs is not None or settings.data is not None or (settings.task, settings.split) != OWN:
            raise ValueError("ecq-fig3 draws its own samples; leave --task, --split, --epochs and --data out")
        check_methods(settings.methods, WAYS)
        seeds = 3 if settings.seeds is None else settings.seeds
        if seeds < 1:
            raise ValueError("seeds is a positive number; write --seeds 3")
        return replace(settings, seeds=seeds, jobs=1)

    def run(self, settings: Settings, say: Say) -> list[Row]:
        """Every method with every seed, one after the other in the same processes."""
        s = self.check(settings)
        may_build()
        methods = tuple(name for name in WAYS if not s.methods or name in s.methods)
        job = replace(self.job, methods=methods, seeds=tuple(range(s.seeds or 1)))
        total = len(methods) * len(job.seeds)

        def hear(message: tuple[int, str]) -> None:
            say(message[0], total, message[1])

        with Network(HOSTS, RATE) as network:
            rows = launch(descend, HOSTS, job, timeout=3600.0, hear=hear, hosts=network)[0]
        head: Row = {"task": TASK, "split": "iid", "hosts": HOSTS, "rate": RATE, "steps": job.steps}
        return [{**head, **row} for row in rows]

    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """Means over seeds."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(row["method"], []).append(row | {"mb_sent": row["bytes_sent"] / 1e6})
        return [
            {"method": name, **{what: fmean(row[what] for row in some) for what in FIGURES}, "seeds": len(some)}
            | {f"{end.__name__}_s": end(row["seconds"] for row in some) for end in (min, max)}
            for name, some in groups.items()
        ]

    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """What the figure shows."""
        at, place = {row["method"]: row for row in self.summary(rows)}, rows[0]["task"]
        told = []
        for claim, published, needs, judge in STATEMENTS:
            measured, holds = judge(*(at[n] for n in needs)) if set(needs) <= set(at) else ("not run", None)
            told.append(Trend(place, claim, published, measured, holds))
        return told

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """One bar per method, cut into stages, with its loss."""
        from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

        means = self.summary(rows)
        figure = Figure(figsize=(7.6, 3.8), dpi=110, layout="constrained")
        panel, names, below = figure.subplots(), [row["method"] for row in means], [0.0] * len(means)
        for stage, colour in COLOURS.items():
            heights = [row[f"{stage}_s"] for row in means]
            panel.bar(names, heights, 0.6, below, color=colour, label=stage)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        for at, row in enumerate(means):
            panel.text(at, row["seconds"], f"({row['loss']:.4f})", ha="center", va="bottom", fontsize=8)
        first = rows[0]
        panel.set_ylabel(f"seconds of {first['steps']:,} iterations")
        panel.set_title(f"{first['task']}, {first['hosts']} hosts at {first['rate']} (test loss)", fontsize=10)
        panel.set_ylim(0, 1.25 * max(row["seconds"] for row in means))
        panel.grid(axis="y", alpha=0.25)
        panel.legend(frameon=False, ncols=len(STAGES))
        figure.savefig(path)

    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """Seconds and losses, and what the figure shows."""
        head = ["method", "seconds", "seeds from-to", *STAGES, "test loss", "MB sent per host"]
        made = table(head, [_cells(row) for row in self.summary(rows)])
        command = f"sudo thinwire reproduce ecq-fig3 --save benchmarks/data/{self.name}.csv"
        return {"times": made + where(rows[0], command), "statements": statements(self.trends(rows))}


def may_build() -> None:
    """Raise a PermissionError that says what to write without root; the lab itself reports anything else it lacks."""
    try:
        tools.check()
    except PermissionError as error:
        raise PermissionError(
            "ecq-fig3 runs on hosts of a network lab, and making them needs root; write sudo thinwire reproduce "
            "ecq-fig3, or thinwire reproduce ecq-fig3 --from benchmarks/data/ecq-fig3.csv for the recorded rows"
        ) from error


def _cells(row: Row) -> list[str]:
    stages = [f"{row[f'{stage}_s']:.2f}" for stage in STAGES]
    sent = f"{row['mb_sent']:.1f}"
    return [row["method"], f"{row['seconds']:.2f}", _range(row), *stages, f"{row['loss']:.5f}", sent]


def _range(row: Row) -> str:
    return f"{row['min_s']:.1f}-{row['max_s']:.1f}"


def _similar(ecq: Row, exact: Row) -> tuple[str, bool]:
    return _losses(ecq, exact), ecq["loss"] < (1 + NEAR) * exact["loss"]


def _lower(ecq: Row, qsgd: Row) -> tuple[str, bool]:
    return _losses(ecq, qsgd), ecq["loss"] < qsgd["loss"]


def _losses(one: Row, other: Row) -> str:
    return f"{one['loss']:.5f} against {other['loss']:.5f}, {100 * (one['loss'] / other['loss'] - 1):+.1f}%"


def _sooner(ecq: Row, other: Row) -> tuple[str, bool]:
    """Whether the slowest run of one is shorter than the fastest of the other."""
    codes = ecq["encode_s"] + ecq["decode_s"]
    here = f"{_range(ecq)} s, of which {codes:.2f} s encode and decode, against {_range(other)} s"
    return here, ecq["max_s"] < other["min_s"]


STATEMENTS: tuple[tuple[str, str, tuple[str, ...], Callable[..., tuple[str, bool]]], ...] = (
    ("ECQ-SGD reaches 32-bit SGD's test loss, within 5%: s=64", "similar", ("ECQ-SGD-64", "32-bit"), _similar),
    ("ECQ-SGD reaches 32-bit SGD's test loss, within 5%: s=16", "similar", ("ECQ-SGD-16", "32-bit"), _similar),
    ("ECQ-SGD takes less time than 32-bit SGD: s=64", "less", ("ECQ-SGD-64", "32-bit"), _sooner),
    ("ECQ-SGD takes less time than QSGD: s=64 beside s=127", "less", ("ECQ-SGD-64", "QSGD-127"), _sooner),
    ("s=64 has less loss than QSGD with s=127", "no figure", ("ECQ-SGD-64", "QSGD-127"), _lower),
    ("with as many levels it has less loss than QSGD: s=16", "no figure", ("ECQ-SGD-16", "QSGD-16"), _lower),
)
"""Claim, what was published, the methods it takes, and the measured words with the verdict."""
