"""Study: a reproduction of a few cases, each under a few methods, with one table and a list of statements.

A row is one run at one `step` of `steps`; means are over seeds, of the rows at the last step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar, TypeAlias, final

from thinwire.lab import tasks
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend, check_methods
from thinwire.lab.reproduce.parallel import each

Place: TypeAlias = tuple[str, str]
"""A case and a method."""
Means: TypeAlias = Mapping[Place, Row]
KEY = ("task", "split", "case", "method")


@dataclass(frozen=True)
class Run:
    """What decides the numbers of a run; `epochs` is 0 where there are none."""

    case: str
    method: str
    seed: int
    epochs: int


@dataclass(frozen=True)
class Statement:
    """One published statement, and how to judge it from the means of `needs`."""

    claim: str
    published: str
    needs: tuple[Place, ...]
    test: Callable[[Means], tuple[str, bool]]


class Study(Reproduction):
    """Base of the studies. A subclass writes `work` and `plot`, and declares the rest."""

    sections: ClassVar[tuple[str, ...]] = ("results", "statements")
    task: ClassVar[str] = "digits"
    split: ClassVar[str] = "iid"
    cases: ClassVar[Mapping[str, tuple[str, ...]]]
    """The methods of each case."""
    seeds: ClassVar[int] = 3
    epochs: ClassVar[int | None] = None
    """The default number of epochs; None if the study does not train in epochs."""
    main: ClassVar[str]
    """The field whose `least` and `most` over the seeds are in a summary."""
    empty: ClassVar[str] = "lost"
    """What the page says where a mean is None."""
    heads: ClassVar[Mapping[str, str]] = {}
    """Headings of columns on the page, where they are not the field's name."""
    statements: ClassVar[tuple[Statement, ...]]

    @abstractmethod
    def work(self, run: Run) -> list[Row]:
        """The rows of one run, without task, split, case, method and seed. Figures of a lost run are None."""

    @final
    def check(self, settings: Settings) -> Settings:
        """Numbers and methods; epochs and seeds are filled in."""
        if settings.task != "digits" or settings.split != "iid" or settings.data is not None:
            raise ValueError(f"{self.name} has its own data; leave --task, --split and --data out")
        if self.epochs is None and settings.epochs is not None:
            raise ValueError(f"{self.name} does not train in epochs; leave --epochs out")
        epochs = self.epochs if settings.epochs is None else settings.epochs
        seeds = self.seeds if settings.seeds is None else settings.seeds
        if (epochs is not None and epochs < 1) or seeds < 1 or settings.jobs < 1:
            raise ValueError("epochs, seeds and jobs are positive numbers; write --epochs 12 --seeds 3 --jobs 2")
        check_methods(settings.methods, {method for methods in self.cases.values() for method in methods})
        if self.task == "digits":
            tasks.get(self.task).locate(None)
        return replace(settings, epochs=epochs, seeds=seeds)

    @final
    def run(self, settings: Settings, say: Say) -> list[Row]:
        """Every case, method and seed."""
        s = self.check(settings)
        runs = [
            Run(case, method, seed, s.epochs or 0)
            for case, methods in self.cases.items()
            for method in methods
            for seed in range(s.seeds or 1)
            if not s.methods or method in s.methods
        ]
        rows: list[Row] = []
        for done, (run, some) in enumerate(zip(runs, each(self.work, runs, s.jobs), strict=True), 1):
            head = {"task": self.task, "split": self.split, "case": run.case, "method": run.method, "seed": run.seed}
            rows += [{**head, **row} for row in some]
            say(done, len(runs), f"{run.case}, {run.method}")
        return rows

    @final
    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """Means over seeds of the last rows; None where one is None."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            if row["step"] == row["steps"]:
                groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
        return [self._means(several) for several in groups.values()]

    def _means(self, rows: Sequence[Row]) -> Row:
        means: Row = {name: rows[0][name] for name in KEY} | {"seeds": len(rows)}
        for name in rows[0]:
            values = [row[name] for row in rows]
            if name not in means and all(value is None or isinstance(value, float | int) for value in values):
                means[name] = None if None in values else fmean(values)
        mine = [row[self.main] for row in rows]
        lost = None in mine
        return means | {"least": None if lost else min(mine), "most": None if lost else max(mine)}

    @final
    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """The published statements."""
        at = {(row["case"], row["method"]): row for row in self.summary(rows)}
        trends = []
        for s in self.statements:
            told, holds = s.test(at) if all(place in at for place in s.needs) else ("not run", None)
            trends.append(
                Trend(", ".join(dict.fromkeys(case for case, _ in s.needs)), s.claim, s.published, told, holds)
            )
        return trends

    @final
    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """The means, and the statements."""
        shown = {name: spec for name, spec in self.columns.items() if name not in ("task", "split")}
        body = [[self._cell(row[name], spec) for name, spec in shown.items()] for row in self.summary(rows)]
        head = [self.heads.get(name, name.replace("_", " ")) for name in shown]
        done = where(rows[0], f"thinwire reproduce {self.name} --save benchmarks/data/{self.name}.csv")
        told = [[t.claim, t.published, f"{VERDICT[t.holds]}: {t.measured}"] for t in self.trends(rows)]
        return {
            "results": table(head, body, left=2) + done,
            "statements": table(["statement", "published", "here"], told, left=3),
        }

    def _cell(self, value: float | str | None, spec: str) -> str:
        return self.empty if value is None else format(value, spec)


VERDICT = {True: "holds", False: "**does not hold**", None: "open"}
