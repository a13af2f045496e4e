"""`thinwire race --stragglers ...`: real processes on shaped links, and the clock beside them."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

import thinwire as tw
from thinwire.cli.output import errors, line, reserve, show
from thinwire.core.rates import bits_per_second
from thinwire.lab import records
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network
from thinwire.lab.net.tools import check as can_build
from thinwire.lab.records import Row
from thinwire.lab.reproduce.parallel import each
from thinwire.lab.stragglers import clock, course, plots, processes, table
from thinwire.lab.stragglers.course import LIMIT, TARGET, TICK, Run
from thinwire.lab.stragglers.kinds import KINDS
from thinwire.lab.stragglers.steps import FIRST, SEEDS, STEPS, best, climb, step_of
from thinwire.topology.plot import check_plot

TIMEOUT = 600.0  # seconds for one run
RATE = "1gbit"


@dataclass(frozen=True)
class Asked:
    """The options of the command; None is the default of each."""

    task: str
    stragglers: str
    hosts: int
    clock: Sequence[int] | None
    rate: str | None
    methods: Sequence[str] | None
    seeds: Sequence[int] | None
    target: float | None
    seconds: float | None
    lr: float | None
    tune: bool
    recorded: Path | None
    as_json: bool
    save: Path | None
    curves: Path | None
    plot: Path | None

    @property
    def sizes(self) -> list[int]:
        """How many workers race on the clock: as many as hosts, and those for which step sizes are recorded."""
        known = (self.hosts or 4, *(workers for kind, workers in STEPS if kind == self.stragglers))
        return list(dict.fromkeys(known if self.clock is None else self.clock))

    def runs(self, workers: int, *, whole: bool) -> list[Run]:
        """Every contestant with every seed, seed by seed."""
        seeds = SEEDS[:1] if self.tune else self.seeds or range(3)
        return [
            Run(
                self.stragglers,
                method,
                workers,
                seed,
                FIRST if self.tune else step_of(self.stragglers, workers, method, self.lr),
                self.rate or RATE,
                TARGET if self.target is None else self.target,
                self.seconds or LIMIT,
                whole,
            )
            for seed in seeds
            for method in dict.fromkeys(self.methods or course.contestants(workers))
        ]

    def check(self) -> None:
        """Raise a ValueError for what cannot be raced."""
        KINDS.parse(self.stragglers)
        bits_per_second(self.rate or RATE)
        for workers in [self.hosts] * (self.hosts != 0) + self.sizes:
            course.check_workers(self.task, workers)
        for method in self.methods or ():
            tw.method(method)
        if self.seconds is not None and not 10 * TICK <= self.seconds < math.inf:
            raise ValueError(f"--seconds {self.seconds:g}: tests come every {TICK} s; write --seconds {LIMIT:g}")
        if self.target is not None and not 0 < self.target < 1:
            raise ValueError(f"target={self.target} is not an accuracy between 0 and 1; write --target {TARGET}")
        if self.seeds is not None and (not self.seeds or min(self.seeds) < 0):
            raise ValueError("a race needs seeds from 0 up; write --seeds 3, or --seed 0 --seed 1")
        if self.tune and (self.lr is not None or self.seeds is not None or self.curves or self.plot):
            raise ValueError(f"--tune climbs from {FIRST}, with its own seeds; leave --lr, --seed and --plot out")
        if self.recorded is not None and (self.tune or self.save or self.curves or self.plot):
            raise ValueError("--from shows saved rows, which have no curves; leave it out to race")


def race(asked: Asked) -> None:
    """Race, or climb to step sizes, or show what was saved."""
    asked.check()
    if asked.recorded is not None:
        _show(asked, table.read(asked.recorded, asked.stragglers))
        return
    if asked.plot is not None:
        check_plot(asked.plot)
    here = asked.runs(asked.hosts, whole=True) if asked.hosts and not asked.tune else []
    far = [run for n in asked.sizes for run in asked.runs(n, whole=n == asked.hosts and not asked.tune)]
    reserve(asked.save, asked.curves, asked.plot)
    if asked.tune:
        _show_tuned(asked, _tuned(asked, far))
        return
    rows: list[Row] = []

    def file(row: Row) -> None:
        """Write each run as it ends, so that a race that is stopped keeps what it has measured."""
        rows.append(row)
        if asked.save is not None:
            table.keep(asked.save, [row])
        if asked.curves is not None and _drawn(asked, row):
            table.keep_curves(asked.curves, [row])

    if here:
        _raced(here, file)
    with _line(far) as hear:
        for row in each(clock.race, far, os.cpu_count() or 1):
            file(row)
            hear(row)
    for path in filter(None, (asked.save, asked.curves)):
        errors.print(f"{len(rows)} runs are in {path}", soft_wrap=True)
    if asked.plot is not None:
        files = plots.race([row for row in rows if _drawn(asked, row)], asked.plot)
        errors.print(f"plots written to {', '.join(map(str, files))}", soft_wrap=True)
    _show(asked, rows)


def _drawn(asked: Asked, row: Row) -> bool:
    """Curves are those of the first seed, and of as many workers as there are hosts."""
    first = min(asked.seeds) if asked.seeds else 0
    return (row["seed"], row["workers"]) == (first, asked.hosts or asked.sizes[0])


def _raced(runs: Sequence[Run], file: Say) -> None:
    hosts = runs[0].workers
    network = Network(hosts, runs[0].rate, down=True)
    try:
        can_build()
    except PermissionError as error:
        raise PermissionError(
            "the hosts of a race are network namespaces, and that needs root; write sudo thinwire race --stragglers "
            f"{runs[0].stragglers}, or --hosts 0 to race on the clock alone"
        ) from error
    with network, tempfile.TemporaryDirectory() as folder, _line(runs) as hear:

        def heard(row: Row) -> None:
            file(row)
            hear(row)

        launch(processes.race, hosts, runs, folder, timeout=TIMEOUT * len(runs), hear=heard, hosts=network)


def _tuned(asked: Asked, runs: Sequence[Run]) -> list[Row]:
    rows: list[Row] = []
    with _line(runs) as hear:
        for tried in each(climb, runs, os.cpu_count() or 1):
            rows += tried
            hear(tried[-1])
            if asked.save is not None:
                table.keep(asked.save, tried, table.TRIED)
    return rows


def _show(asked: Asked, rows: Sequence[Row]) -> None:
    here = {row["workers"] for row in rows if row["where"] == "processes"}
    lines = {n: table.beside(rows, n) for n in sorted(here)}
    far = {n: table.summary(rows, "clock", n) for n in sorted({row["workers"] for row in rows} - here)}
    if asked.as_json:
        named = {"processes": lines, "clock": far}
        document = {"environment": records.environment(), "rows": list(rows), "summary": named}
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    said = f"{rows[0]['task']} to {rows[0]['target']:.1%} at {rows[0]['rate']}, {KINDS.parse(asked.stragglers)}"
    for n, some in lines.items():
        title = f"{said}; {n} workers in real processes, and on the clock"
        show(some, as_json=False, title=title, columns=table.COLUMNS)
        typer.echo(table.agreement(some))
    for n, some in far.items():
        show(some, as_json=False, title=f"{said}; {n} workers on the clock", columns=table.FAR)


def _show_tuned(asked: Asked, rows: Sequence[Row]) -> None:
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workers"], row["method"]), []).append(row)
    winners = {key: best(some) for key, some in groups.items()}
    marked = [{**row, "best": row["lr"] == winners[row["workers"], row["method"]]} for row in rows]
    title = f"{rows[0]['task']} to {rows[0]['target']:.1%}, {KINDS.parse(asked.stragglers)}, on the clock"
    show(marked, as_json=asked.as_json, title=title, columns=table.GRID)


@contextmanager
def _line(runs: Sequence[Run]) -> Iterator[Say]:
    """A line on standard error that says how far the race has come."""
    done = 0
    with line(f"{len(runs)} runs") as say_so:

        def hear(row: Row) -> None:
            nonlocal done
            done += 1
            how = f"{row['seconds']:.1f} s" if row["reached"] else f"not there, {row['accuracy']:.1%}"
            where = f"{row['method']}, {row['workers']} workers ({row['where']}), seed {row['seed']}: {how}"
            say_so(f"{done} of {len(runs)} runs; {where}")

        yield hear
