"""Modelled: a reproduction on a network that is not there: steps from shapes alone, by `thinwire.sim.foresee`.

A row is one case under one method on one number of workers. Nothing is trained, and nothing depends on a seed: what
is assumed stands in the module of each, and how far the model is off is what `model_error` finds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeAlias, final

from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Reproduction, Say, Settings, Trend, check_methods
from thinwire.lab.reproduce.statements import statements
from thinwire.sim import Load

Rows: TypeAlias = Sequence[Row]
SLOWEST, FASTEST = 1e6, 1e13  # bits per second, between which a rate is looked for
HALVINGS = 24  # to a millionth


class Job(NamedTuple):
    """A line for the bar, and what makes the rows."""

    what: str
    make: Callable[[], list[Row]]


@dataclass(frozen=True)
class Claim:
    """A statement, what the paper says, and how to judge it; `test` returns None where rows are missing."""

    where: str
    claim: str
    published: str
    test: Callable[[Rows], tuple[str, bool] | None]


class Modelled(Reproduction):
    """Base. A subclass writes `jobs` and `plot`, and declares the rest."""

    sections: ClassVar[tuple[str, ...]] = ("results", "statements")
    methods: ClassVar[Mapping[str, str]]
    """The id of each method, by the name that the rows have."""
    fields: ClassVar[tuple[str, ...]]
    """Of every row; what a row does not have is None."""
    heads: ClassVar[Mapping[str, str]] = {}
    """Headings of columns on the page, where they are not the field's name."""
    words: ClassVar[int] = 2
    """How many of the columns are words."""
    claimed: ClassVar[tuple[Claim, ...]]

    @abstractmethod
    def jobs(self, methods: Sequence[str]) -> list[Job]:
        """What there is to compute under these methods."""

    @abstractmethod
    def told(self, row: Row) -> bool:
        """Whether the tables show this row."""

    @final
    def check(self, settings: Settings) -> Settings:
        """All but the methods is fixed."""
        if settings.task != "digits" or settings.split != "iid" or settings.data is not None:
            raise ValueError(f"{self.name} trains nothing; leave --task, --split and --data out")
        if settings.epochs is not None or settings.seeds is not None:
            raise ValueError(f"{self.name} is a model without epochs and seeds; leave --epochs and --seeds out")
        check_methods(settings.methods, self.methods)
        return settings

    @final
    def run(self, settings: Settings, say: Say) -> list[Row]:
        """Every job, one after the other: each takes a fraction of a second, or a few."""
        wanted = self.check(settings).methods
        jobs = self.jobs([name for name in self.methods if not wanted or name in wanted])
        rows: list[Row] = []
        empty: Row = {"task": "model", "split": "none"} | dict.fromkeys(self.fields)
        for done, job in enumerate(jobs, 1):
            rows += [empty | row for row in job.make()]
            say(done, len(jobs), job.what)
        assert all(len(row) == len(empty) for row in rows), "a row has a field that is not declared"
        return rows

    @final
    def summary(self, rows: Rows) -> list[Row]:
        """The rows that are shown."""
        return [row for row in rows if self.told(row)]

    @final
    def trends(self, rows: Rows) -> list[Trend]:
        """The statements."""
        found = [(one, one.test(rows)) for one in self.claimed]
        return [
            Trend(one.where, one.claim, one.published, *(("not run", None) if judged is None else judged))
            for one, judged in found
        ]

    def page(self, rows: Rows) -> dict[str, str]:
        """The rows that are shown, and the statements."""
        shown = {name: spec for name, spec in self.columns.items() if name not in ("task", "split")}
        body = [[cell(row[name], spec) for name, spec in shown.items()] for row in self.summary(rows)]
        head = [self.heads.get(name, name.replace("_", " ")) for name in shown]
        done = where(rows[0], f"thinwire reproduce {self.name} --save benchmarks/data/{self.name}.csv")
        return {
            "results": table(head, body, left=self.words) + done,
            "statements": statements(self.trends(rows)),
        }


def cell(value: float | str | None, spec: str) -> str:
    """A figure of a table; nothing where there is none."""
    return "" if value is None else format(value, spec)


def only(rows: Rows, **wanted: object) -> Row | None:
    """The row with these values, if there is one."""
    return next((row for row in rows if all(row[name] == value for name, value in wanted.items())), None)


def at_end(load: Load) -> Load:
    """The same load without overlap: no gradient leaves before backward has ended."""
    return replace(load, tensors=tuple(one._replace(seconds=load.computed) for one in load.tensors))


def rate_for(wanted: float, ratio: Callable[[float], float]) -> float | None:
    """The rate at which `ratio`, which falls with the rate, is `wanted`; None where no rate between two ends does it.

    >>> f"{rate_for(2.0, lambda rate: 1 + 1e9 / rate):.4g}"
    '1e+09'
    """
    low, high = SLOWEST, FASTEST
    if not ratio(high) < wanted < ratio(low):
        return None
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if ratio(middle) > wanted else (low, middle)
    return high
