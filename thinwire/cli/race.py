"""`thinwire race`: seconds of training to a test accuracy, over shaped links, beside DDP and its hooks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.output import errors, line, reserve, show, warn_of_few_rounds
from thinwire.cli.stragglers import RATE as SLOW_RATE
from thinwire.cli.stragglers import Asked
from thinwire.cli.stragglers import race as with_stragglers
from thinwire.lab import race_table, records
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network
from thinwire.lab.net.tools import check as can_build
from thinwire.lab.race import Ended, News, Run, check, contestants, lost, runs
from thinwire.lab.race import race as program
from thinwire.lab.race_courses import COURSES
from thinwire.lab.race_steps import DDP, GRID, SEED, STEPS, best, unrecorded
from thinwire.lab.race_table import COLUMNS, TRIED, keep, points, summary, verdict, without_curves
from thinwire.lab.records import Row
from thinwire.lab.report import Run as Recorded
from thinwire.lab.report import page
from thinwire.topology.plot import check_plot

RATE = "100mbit"
TIMEOUT = 3600.0  # seconds for one run
NOT_FINITE = "is not finite"  # what the engine says
File = Callable[[Row], None]


def race(
    task: Annotated[str, typer.Option(help=f"What to train: {' or '.join(COURSES)}.")] = "digits",
    hosts: Annotated[int, typer.Option(help="Hosts of a network lab, one rank on each; needs root.")] = 4,
    rate: Annotated[
        str | None, typer.Option(help=f"Rate of every host's uplink (default: {RATE}; with stragglers {SLOW_RATE}).")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this contestant, a method id or one of DDP's (ddp, ...); may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each contestant, with seeds 0, 1, ...")] = 3,
    seed: Annotated[list[int] | None, typer.Option(help="Run this seed instead; may be repeated.")] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy to reach (default: the task's).")] = None,
    steps: Annotated[int | None, typer.Option(help="Maximum steps of a run (default: the task's).")] = None,
    lr: Annotated[float | None, typer.Option(help="Step size for all (default: the one recorded for each).")] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Find step sizes instead: try all of a grid, on this machine's own links."),
    ] = False,
    stragglers: Annotated[
        str | None,
        typer.Option(
            help="Race ways to wait for slow workers instead, in processes and on the clock: slow (one, 5 times "
            "slower), stalls (5% of all steps, 10 times longer), or with settings, such as slow:times=3."
        ),
    ] = None,
    clock: Annotated[
        list[int] | None,
        typer.Option(
            help="With --stragglers: workers on the clock; may be repeated (default: as many as hosts, and all "
            "for which step sizes are recorded). "
            "--hosts 0 races there alone, and needs no root."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="With --stragglers: seconds of a run, in place of --steps.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the task's files, if they lie elsewhere.")] = None,
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Show the race in this CSV file, and run nothing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, with the curves.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Also write the rows to this CSV file; other runs in it stay.")
    ] = None,
    curves: Annotated[Path | None, typer.Option(help="Also write the curves to this CSV file, likewise.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the curves: a .svg, .png or .pdf file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write an HTML page with the curves.")] = None,
) -> None:
    """Race DDP, its hooks and thinwire's methods to the same accuracy over slow links.

    Prints a table of seconds, and of speed-ups over DDP in float32 and over its PowerSGD hook, as means over seeds.
    With --stragglers it races ways to wait for slow workers, and the clock beside them.
    """
    if seeds < 1:
        raise ValueError(f"--seeds {seeds} leaves nothing to run; write --seeds 3")
    if stragglers is not None:
        if any((steps, data, out)):
            raise ValueError("with stragglers a run has seconds, and no page; leave --steps, --data and --out out")
        numbers = list(dict.fromkeys(seed or ([] if tune else range(seeds)))) or None
        with_stragglers(
            Asked(
                task=task,
                stragglers=stragglers,
                hosts=hosts,
                clock=clock,
                rate=rate,
                methods=method,
                seeds=numbers,
                target=target,
                seconds=seconds,
                lr=lr,
                tune=tune,
                recorded=recorded,
                as_json=as_json,
                save=save,
                curves=curves,
                plot=plot,
            )
        )
        return
    if clock is not None or seconds is not None:
        raise ValueError("--clock and --seconds belong to a race with stragglers; write --stragglers slow")
    rate = RATE if rate is None else rate
    chosen = list(dict.fromkeys(method or contestants(task)))
    numbers = [SEED] if tune and seed is None else list(dict.fromkeys(seed or range(seeds)))
    if tune and lr is not None:
        raise ValueError(f"--tune tries {', '.join(map(str, GRID))}; leave --lr out")
    if recorded is not None:
        if any((tune, curves, plot, out)):
            raise ValueError("--from shows saved rows, which have no curves; leave it out to race")
        _show(race_table.read(recorded, task, hosts, rate), as_json=as_json)
        return
    check(task, hosts, rate)
    if plot is not None:
        check_plot(plot)
    lrs = GRID if tune else None if lr is None else [lr]
    every = runs(task, chosen, numbers, None if tune else rate, lrs=lrs, target=target, most=steps, data=data)
    reserve(save, curves, plot, out)
    if lrs is None:
        _say_unrecorded(task, chosen)
    for name in chosen:
        warn_of_few_rounds(name, every[0].most)

    def file(row: Row) -> None:
        """Write each run as it ends, so that a race that is stopped keeps what it has measured."""
        for path, kept in ((save, without_curves([row])), (curves, points([row]))):
            if path is not None:
                keep(path, kept)

    rows = _tuned(every, hosts, file) if tune else _raced(every, hosts, rate, file)
    for path in (save, curves):
        if path is not None:
            errors.print(f"{len(rows)} runs are in {path}", soft_wrap=True)
    if plot is not None:
        race_table.plot(rows, plot)
        errors.print(f"plot written to {plot}", soft_wrap=True)
    if out is not None:
        out.write_text(page([Recorded("thinwire race", {"rows": rows}, [records.environment()])]), encoding="utf-8")
        errors.print(f"the curves are in {out}", soft_wrap=True)
    if tune:
        _show_tuned(rows, as_json=as_json)
    else:
        _show(rows, as_json=as_json)


def _say_unrecorded(task: str, methods: Sequence[str]) -> None:
    """Say whose step sizes nobody has looked for."""
    if names := unrecorded(task, methods):
        errors.print(
            f"no step size is recorded for {', '.join(names)} on {task}: DDP's {STEPS[task][DDP]:g} is taken, which "
            f"may not suit; thinwire race --task {task} --tune --method {names[0]} looks for one",
            soft_wrap=True,
        )


def _raced(every: Sequence[Run], hosts: int, rate: str, file: File) -> list[Row]:
    network = Network(hosts, rate)
    try:
        can_build()
    except PermissionError as error:
        raise PermissionError(
            "the hosts of a race are network namespaces, and that needs root; write sudo thinwire race --task "
            f"{every[0].task}"
        ) from error
    with network, _line(every, file) as hear:
        rows: list[Row] = launch(program, hosts, every, timeout=TIMEOUT * len(every), hear=hear, hosts=network)[0]
    return rows


def _tuned(every: Sequence[Run], workers: int, file: File) -> list[Row]:
    """Tune one contestant after another."""
    rows: list[Row] = []
    for _, group in groupby(every, key=lambda run: run.method):
        rows += _tried(list(group), workers, file)
    return rows


def _tried(some: Sequence[Run], workers: int, file: File) -> list[Row]:
    """A gossiping model that is no longer finite ends its processes: each run is then made alone, and it has lost."""
    try:
        with _line(some, file) as hear:
            rows: list[Row] = launch(program, workers, some, timeout=TIMEOUT * len(some), hear=hear)[0]
            return rows
    except RuntimeError as error:
        if NOT_FINITE not in str(error):
            raise
    if len(some) > 1:
        return [row for run in some for row in _tried([run], workers, file)]
    file(row := lost(some[0], workers))
    return [row]


def _show(rows: Sequence[Row], *, as_json: bool) -> None:
    lines = summary(rows)
    if as_json:
        document = {"environment": records.environment(), "rows": list(rows), "summary": lines}
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    first = rows[0]
    title = (
        f"{first['task']} to {first['target']:.1%}, {first['hosts']} hosts at {first['rate']}, {first['params']:,} "
        "parameters; means over seeds. megabytes: of the busiest host."
    )
    show(lines, as_json=False, title=title, columns=COLUMNS)
    if said := verdict(lines):
        typer.echo(said)


def _show_tuned(rows: Sequence[Row], *, as_json: bool) -> None:
    first, winners = rows[0], set()
    for name in dict.fromkeys(row["method"] for row in rows):
        winners.add(id(best([row for row in rows if row["method"] == name])))
    title = f"{first['task']} to {first['target']:.1%}, {first['hosts']} workers, seed {first['seed']}"
    marked = [{**row, "best": id(row) in winners} for row in rows]
    show(marked, as_json=as_json, title=title, columns=TRIED)


@contextmanager
def _line(every: Sequence[Run], file: File) -> Iterator[Say]:
    """A line on standard error that says which run it is and how far it has come. Rows are filed as they come."""
    with line() as say_so:

        def hear(news: News | Ended) -> None:
            if isinstance(news, Ended):
                file(news.row)
                return
            run = every[news.run]
            say_so(
                f"run {news.run + 1} of {len(every)}: {run.method}, seed {run.seed}, lr {run.step.lr:g}: "
                f"{news.steps} steps, {news.seconds:.1f} s, {news.accuracy:.1%}"
            )

        yield hear
