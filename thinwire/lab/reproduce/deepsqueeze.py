"""DeepSqueeze beside D-PSGD, DCD, ECD and CHOCO-SGD on a ring of eight: accuracy against bytes.

Quantisers are in two forms. "4 bits" is thinwire's: blocks of 512, the scale of a block its largest magnitude. "4
bits, L2" is the papers': one scale, the length of the whole vector, which loses far more. "1 bit" is the unbiased
one, "sign" the scaled sign. CHOCO-SGD and DeepSqueeze divide unbiased quantisers that lose much by 1 + omega, and
take the library's eta.

Each method and compressor has its own learning rate: of RATES the one that leaves the mean model of seed 0 with the
least training loss in a run of a third of the epochs. Those runs are rows, too, with the `kind` "grid". It is "eta"
where eta is a multiple of the library's.

Reference: Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu, "DeepSqueeze: decentralization meets error-compensated
compression", 2019, arXiv 1907.07346. Koloskova, Lin, Stich, Jaggi, "Decentralized deep learning with arbitrary
communication compression", ICLR 2020, arXiv 1907.09356, table 1.

Departs from the papers: a net of 18,322 parameters on digits or Fashion-MNIST in place of ResNet-20 on CIFAR-10, and
under a thousand steps in place of 300 epochs; no weight decay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import thinwire as tw
from thinwire.core.registry import suggest
from thinwire.exchange.mix import Mix
from thinwire.lab.records import Row
from thinwire.lab.reproduce import deepsqueeze_plot, deepsqueeze_tables
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend, check_methods
from thinwire.lab.reproduce.on_images import filled, task_of
from thinwire.lab.reproduce.parallel import each
from thinwire.lab.reproduce.ring import FIELDS, SPLITS, WORKERS, Run, train

EPOCHS = {"digits": 20, "fashion": 3}
SEEDS = {"digits": 3, "fashion": 1}
RATES = (0.8, 0.2, 0.05, 0.0125)
BITS = {f"{b} bits": f"qsgd:bits={b}" for b in (8, 4, 2)}
L2 = {f"{b} bits, L2": f"qsgd:bits={b},norm=l2,block=none" for b in (8, 4, 2)}
ONE = {"1 bit": "qsgd:bits=1"}
BIASED = {"sign": "scaled-sign", "top 10%": "topk:ratio=0.1", "top 1%": "topk:ratio=0.01"}
COMPRESSORS = {
    "dcd-psgd": BITS | ONE | BIASED | L2,
    "ecd-psgd": BITS | ONE | BIASED | L2,
    "choco-sgd": BITS | BIASED | L2,
    "deepsqueeze": BITS | BIASED | L2,
}
HARSH = ("sign", "top 1%", "4 bits, L2")
TIMES = (0.5, 2.0, 8.0)  # the library's eta
TURNED = (*(("choco-sgd", s) for s in HARSH), *(("deepsqueeze", s) for s in HARSH))


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
    claims: ClassVar[str] = "On a ring DeepSqueeze and CHOCO-SGD stand compression under which DCD and ECD fail."
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
        """The rates of every cell, then its seeds at the best of them, then other etas."""
        s = self.check(settings)
        assert s.epochs is not None
        assert s.seeds is not None
        cells, full = _cells(s.methods), range(s.seeds)
        refused = [_row(s, cell, "final") for cell in cells if _refused(cell)]
        cells = [cell for cell in cells if not _refused(cell)]
        grid = [(cell, "grid", _run(s, cell, rate, 0, -(-s.epochs // 3))) for cell in cells for rate in RATES]
        turned = [cell for cell in cells if (cell.method, cell.label) in TURNED]
        total = len(grid) + len(cells) * s.seeds + sum(1 for cell in turned for _ in _turned(cell))
        tried = _all(s, grid, say, 0, total)
        best = {cell: best_rate([row for row in tried if row["id"] == cell.id]) for cell in cells}
        final = [(cell, "final", _run(s, cell, best[cell], seed, s.epochs)) for cell in cells for seed in full]
        final += [(t, "eta", _run(s, t, best[cell], 0, s.epochs)) for cell in turned for t in _turned(cell)]
        return tried + _all(s, final, say, len(grid), total) + refused

    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """Means over seeds."""
        return deepsqueeze_tables.summary(rows)

    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """The published statements."""
        return deepsqueeze_tables.trends(rows)

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Accuracy against bytes."""
        deepsqueeze_plot.plot(self.summary(rows), path)

    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """Accuracy, statements, distances and etas."""
        return {name: make(rows) for name, make in deepsqueeze_tables.SECTIONS.items()}


def _cells(wanted: Sequence[str]) -> list[Cell]:
    """All, or those of the methods and ids in `wanted`."""
    every = [Cell("d-psgd")]
    every += [Cell(method, *pair) for method, some in COMPRESSORS.items() for pair in some.items()]
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


def _turned(cell: Cell) -> Iterator[Cell]:
    """The same with other etas, 1 at most."""
    exchange = tw.method(cell.id).exchange
    assert isinstance(exchange, Mix)
    for times in TIMES:
        if times * exchange.step(WORKERS) <= 1:
            yield replace(cell, eta=times * exchange.step(WORKERS))


def _run(s: Settings, cell: Cell, lr: float, seed: int, epochs: int) -> Run:
    return Run(s.task, s.split, cell.id, lr, seed, epochs, s.data)


def _all(s: Settings, runs: Sequence[tuple[Cell, str, Run]], say: Say, before: int, total: int) -> list[Row]:
    """A row a run."""
    rows = []
    for number, ((cell, kind, run), row) in enumerate(
        zip(runs, each(train, [run for *_, run in runs], s.jobs), strict=True), before + 1
    ):
        rows.append(_row(s, cell, kind, row))
        say(number, total, f"{cell.id} lr {run.lr}")
    return rows


def _row(s: Settings, cell: Cell, kind: str, measured: Row | None = None) -> Row:
    """Every row has every field; those of a method that refused are empty."""
    head: Row = {"task": s.task, "split": s.split, "kind": kind, "method": cell.method, "label": cell.label}
    head |= {"compressor": cell.compressor, "id": cell.id, "refused": measured is None}
    return {**head, **dict.fromkeys(FIELDS), **(measured or {})}


def best_rate(rows: Sequence[Row]) -> float:
    """The rate of the least training loss; where every run was lost, the smallest."""
    kept = [row for row in rows if not row["diverged"]]
    return float(min(kept, key=lambda row: row["loss"])["lr"] if kept else min(row["lr"] for row in rows))
