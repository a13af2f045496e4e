"""DeepSqueeze beside D-PSGD, DCD, ECD and CHOCO-SGD on a ring of eight: accuracy against bytes, loss against epochs.

"4 bits" and "2 bits" are thinwire's quantiser: blocks of 512, the scale of a block its largest magnitude. "4 bits,
L2" is the papers': one scale, the length of the whole vector, which loses far more. "sign" is the scaled sign.
CHOCO-SGD and DeepSqueeze divide unbiased quantisers that lose much by 1 + omega.

Each method and compressor has its own learning rate out of RATES, and CHOCO-SGD and DeepSqueeze their own eta out of
ETAS, None being the library's choice. They are chosen with the seed TUNED, which is none of those reported: all pairs
run for half the epochs (the `kind` "grid"), those FINALISTS with the least training loss of the mean model and the
library's eta at its best two rates for all epochs ("last"), and the least training loss decides. The runs that are
reported are of the kind "final"; "own" is the library's eta at the rate that is best for it, with the same seeds,
where another eta was better. "curve" is the training loss of the mean model after an epoch of a final run.

Reference: Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu, "DeepSqueeze: decentralization meets error-compensated
compression", 2019, arXiv 1907.07346. Koloskova, Lin, Stich, Jaggi, "Decentralized deep learning with arbitrary
communication compression", ICLR 2020, arXiv 1907.09356, table 1.

Departs from the papers: a net of 18,322 parameters on digits or Fashion-MNIST in place of ResNet-20 on CIFAR-10, and
a few hundred steps in place of 300 epochs; no weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import thinwire as tw
from thinwire.core.registry import suggest
from thinwire.lab.records import Row
from thinwire.lab.reproduce import deepsqueeze_plot, deepsqueeze_tables
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend, check_methods
from thinwire.lab.reproduce.on_images import filled, task_of
from thinwire.lab.reproduce.parallel import each
from thinwire.lab.reproduce.ring import FIELDS, SPLITS, Run, train

EPOCHS = {"digits": 10, "fashion": 3}
SEEDS = {"digits": 2, "fashion": 1}
TUNED = 1000  # the seed of the runs that choose rates and etas
RATES = (0.8, 0.2, 0.05)
ETAS = (None, 0.05, 0.15, 0.4, 1.0)
FINALISTS = 3
SIX = {
    "4 bits": "qsgd:bits=4",
    "2 bits": "qsgd:bits=2",
    "sign": "scaled-sign",
    "top 10%": "topk:ratio=0.1",
    "top 1%": "topk:ratio=0.01",
    "4 bits, L2": "qsgd:bits=4,norm=l2,block=none",
}
MIXES = ("choco-sgd", "deepsqueeze")  # the methods with an eta
METHODS = ("dcd-psgd", "ecd-psgd", *MIXES)


@dataclass(frozen=True)
class Cell:
    """A method with a compressor; `label` names the compressor in tables."""

    method: str
    label: str = "32 bits"
    compressor: str = "identity"
    eta: float | None = None

    @property
    def id(self) -> str:
        """As `tw.method` takes it."""
        if self.compressor == "identity":
            return self.method
        eta = "" if self.eta is None else f",eta={self.eta:.4g}"
        return f"{self.method}:compressor=({self.compressor}){eta}"


@final
class DeepSqueeze(Reproduction):
    """Compressed decentralised training, method by method."""

    name: ClassVar[str] = "deepsqueeze"
    paper: ClassVar[str] = "Tang et al. 2019, arXiv 1907.07346; Koloskova et al. 2020, arXiv 1907.09356"
    claims: ClassVar[str] = "DeepSqueeze outperforms the compressed decentralised methods before it."
    columns: ClassVar[dict[str, str]] = deepsqueeze_tables.COLUMNS
    sections: ClassVar[tuple[str, ...]] = tuple(deepsqueeze_tables.SECTIONS)

    def check(self, settings: Settings) -> Settings:
        """Task, split, numbers and methods; epochs and seeds are filled in."""
        task = task_of(self.name, settings, EPOCHS)
        if settings.split not in SPLITS:
            raise ValueError(f"unknown split '{settings.split}'{suggest(settings.split, SPLITS)}")
        made = filled(settings, task, EPOCHS[task.name], SEEDS[task.name])
        _cells(settings.methods)
        return made

    def run(self, settings: Settings, say: Say) -> list[Row]:
        """Rates and etas of every cell, then the seeds at the best of them and at the library's eta."""
        s = self.check(settings)
        assert s.epochs is not None
        cells = _cells(s.methods)
        refused = [_row(s, cell, "final") for cell in cells if _refused(cell)]
        cells = [cell for cell in cells if not _refused(cell)]
        tries = {cell: [replace(cell, eta=eta) for eta in _etas(cell)] for cell in cells}
        half = -(-s.epochs // 2)
        grid = [
            (turned, "grid", _run(s, turned, rate, TUNED, half))
            for some in tries.values()
            for turned in some
            for rate in RATES
        ]
        tried = _all(s, grid, say, 0, len(grid))
        return tried + self.decide(s, tries, tried, say) + refused

    def decide(self, s: Settings, tries: dict[Cell, list[Cell]], tried: Sequence[Row], say: Say) -> list[Row]:
        """The finalists of the grid for all epochs, and the seeds at the best of them and at the library's eta."""
        assert s.epochs is not None
        assert s.seeds is not None
        last = [
            (turned, "last", _run(s, turned, rate, TUNED, s.epochs))
            for cell, some in tries.items()
            for turned, rate in finalists(cell, some, tried)
        ]
        ended = _all(s, last, say, len(tried), len(tried) + len(last))
        final = []
        for cell, some in tries.items():
            best = {turned: best_run([row for row in ended if row["id"] == turned.id]) for turned in some}
            tuned = min(best, key=lambda turned: best[turned][0])
            final += [(tuned, "final", _run(s, tuned, best[tuned][1], seed, s.epochs)) for seed in range(s.seeds)]
            if tuned != cell:
                final += [(cell, "own", _run(s, cell, best[cell][1], seed, s.epochs)) for seed in range(s.seeds)]
        done = len(tried) + len(last)
        return ended + _all(s, final, say, done, done + len(final))

    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """Means over seeds."""
        return deepsqueeze_tables.summary(rows)

    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """The published statements."""
        return deepsqueeze_tables.trends(rows)

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Accuracy against bytes, loss against epochs."""
        deepsqueeze_plot.plot(self.summary(rows), [row for row in rows if row["kind"] == "curve"], path)

    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """Accuracy, statements, the library's eta and distances."""
        return {name: make(rows) for name, make in deepsqueeze_tables.SECTIONS.items()}


def _cells(wanted: Sequence[str]) -> list[Cell]:
    """All, or those of the methods and ids in `wanted`."""
    every = [Cell("d-psgd")]
    every += [Cell(method, *pair) for method in METHODS for pair in SIX.items()]
    known = [name for cell in every for name in (cell.method, cell.id)]
    check_methods(wanted, known)
    return [cell for cell in every if not wanted or cell.method in wanted or cell.id in wanted]


def _refused(cell: Cell) -> bool:
    """Whether the method does not take that compressor."""
    try:
        tw.method(cell.id)
    except ValueError:
        return True
    return False


def _etas(cell: Cell) -> tuple[float | None, ...]:
    """Those to try; one where the method has none."""
    return ETAS if cell.method in MIXES else (None,)


def _run(s: Settings, cell: Cell, lr: float, seed: int, epochs: int) -> Run:
    return Run(s.task, s.split, cell.id, lr, seed, epochs, s.data)


def _all(s: Settings, runs: Sequence[tuple[Cell, str, Run]], say: Say, before: int, total: int) -> list[Row]:
    """A row per run, and behind a final one the losses of its epochs."""
    rows = []
    for number, ((cell, kind, run), row) in enumerate(
        zip(runs, each(train, [run for *_, run in runs], s.jobs), strict=True), before + 1
    ):
        losses = row.pop("losses")
        rows.append(_row(s, cell, kind, row))
        if kind == "final":
            lr_seed: Row = {"lr": run.lr, "seed": run.seed}
            rows += [_row(s, cell, "curve", lr_seed | {"epochs": k, "loss": x}) for k, x in enumerate(losses, 1)]
        say(number, total, f"{cell.id} lr {run.lr}")
    return rows


def _row(s: Settings, cell: Cell, kind: str, measured: Row | None = None) -> Row:
    """Every row has every field; those of a method that refused are empty."""
    head: Row = {"task": s.task, "split": s.split, "kind": kind, "method": cell.method, "label": cell.label}
    head |= {"compressor": cell.compressor, "id": cell.id, "given": cell.eta, "refused": measured is None}
    return {**head, **dict.fromkeys(FIELDS), **(measured or {})}


def finalists(cell: Cell, some: Sequence[Cell], tried: Sequence[Row]) -> list[tuple[Cell, float]]:
    """The pairs of cell and rate with the least losses, and the best two of the library's eta; lost ones are last."""

    def loss(pair: tuple[Cell, float]) -> float:
        row = next(row for row in tried if (row["id"], row["lr"]) == (pair[0].id, pair[1]))
        return math.inf if row["diverged"] else float(row["loss"])

    pairs = sorted(((turned, rate) for turned in some for rate in sorted(RATES)), key=loss)
    own = [pair for pair in pairs if pair[0] == cell]
    return list(dict.fromkeys([*pairs[:FINALISTS], *own[:2]]))


def best_run(rows: Sequence[Row]) -> tuple[float, float]:
    """The least training loss and its rate; where every run was lost, no loss at all and the smallest rate."""
    kept = [(float(row["loss"]), float(row["lr"])) for row in rows if not row["diverged"]]
    return min(kept) if kept else (math.inf, min((float(row["lr"]) for row in rows), default=math.inf))
