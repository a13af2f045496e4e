"""QSGD: accuracy at 8, 4 and 2 bits, its bounds and code lengths, and the share of an epoch spent communicating.

Accuracy is that of four workers with one residual net of 18,322 parameters, at float32's learning rate. As in the
paper, scales are the largest magnitude of a block, of 512 elements for 8 and 4 bits and of 128 for 2. What the
theorems bound is in qsgd_facts, and the share of an epoch in qsgd_share.

Reference: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
encoding", NeurIPS 2017, arXiv 1610.02132.

Departs from the paper: a small net on digits or Fashion-MNIST; every tensor is quantised, where the paper spares
those under 10,000 elements; bits count the sign; the link is computed, not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import ClassVar, final

from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.lab.records import Row
from thinwire.lab.reproduce import qsgd_page
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend
from thinwire.lab.reproduce.one_model import FLOAT, check, every
from thinwire.lab.reproduce.parallel import each
from thinwire.lab.reproduce.qsgd_facts import DRAWS, facts
from thinwire.lab.reproduce.qsgd_share import shares

CHANNELS = {
    "32 bits": FLOAT,
    "8 bits": Channel(Qsgd(bits=8)),
    "4 bits": Channel(Qsgd(bits=4)),
    "2 bits": Channel(Qsgd(bits=2, block=128)),
}
EPOCHS = {"digits": 20, "fashion": 2}


@final
@dataclass(frozen=True)
class QsgdPaper(Reproduction):
    """Training, then vectors (`draws` of each kind), then times."""

    name: ClassVar[str] = "qsgd"
    paper: ClassVar[str] = "Alistarh et al. 2017, arXiv 1610.02132"
    claims: ClassVar[str] = "QSGD keeps accuracy at few bits, within its bounds, and shortens communication."
    columns: ClassVar[dict[str, str]] = {
        "task": "",
        "kind": "",
        "label": "",
        "value": ".4g",
        "limit": ".4g",
        "bits_per_element": ".3f",
        "seeds": "d",
    }
    sections: ClassVar[tuple[str, ...]] = tuple(qsgd_page.SECTIONS)
    draws: int = DRAWS

    def check(self, settings: Settings) -> Settings:
        """Task, numbers and widths; epochs and seeds are filled in."""
        return check(self.name, settings, EPOCHS, CHANNELS)

    def run(self, settings: Settings, say: Say) -> list[Row]:
        """One row per run, per fact and per time."""
        s = self.check(settings)
        channels = {name: c for name, c in CHANNELS.items() if not s.methods or name in s.methods}
        count, runs = every(s, channels)
        found = []
        for number, (name, run, row) in enumerate(runs, 1):
            head: Row = {"kind": "accuracy", "label": name, "seed": run.seed, "value": row["accuracy"]}
            found.append({**head, "limit": None, "bits_per_element": row["bits_per_element"]})
            say(number, count + 2, f"{s.task}, {name}")
        times = next(each(lambda _: shares(s.task, channels, s.data), [None], 1))
        say(count + 1, count + 2, "times")
        here: Row = {"task": s.task, "split": s.split, "epochs": s.epochs}
        there: Row = {"task": "vectors", "split": s.split, "epochs": 0}
        rows = [{**here, **row} for row in [*found, *times]] + [{**there, **row} for row in facts(self.draws)]
        say(count + 2, count + 2, "vectors")
        return rows

    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """Means over seeds."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(tuple(row[name] for name in ("task", "kind", "label")), []).append(row)
        return [
            {
                **{name: several[0][name] for name in ("task", "kind", "label", "limit", "bits_per_element")},
                "value": fmean(row["value"] for row in several),
                "least": min(row["value"] for row in several),
                "most": max(row["value"] for row in several),
                "seeds": len(several),
            }
            for several in groups.values()
        ]

    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """The published statements."""
        return qsgd_page.trends(self.summary(rows))

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Accuracy against bits, and values against their bounds."""
        qsgd_page.plot(self.summary(rows), path)

    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """Accuracy, bounds, lengths, times and statements."""
        return {name: make(self.summary(rows), rows) for name, make in qsgd_page.SECTIONS.items()}
