"""`thinwire reproduce`: run a published comparison again, and say which of its statements hold."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from thinwire.cli.output import errors, reserve, show
from thinwire.lab import records
from thinwire.lab.records import Row, read
from thinwire.lab.reproduce import REPRODUCTIONS, Reproduction, Settings, Trend, get
from thinwire.lab.reproduce.base import keep
from thinwire.topology.plot import check_plot

LIST = {"name": "", "paper": "", "claims": ""}


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which; leave it out to list all.")] = None,
    task: Annotated[str, typer.Option(help="What to train: digits or fashion.")] = "digits",
    split: Annotated[str, typer.Option(help="How workers share the images: iid, or label (sorted).")] = "iid",
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method, by name or by id; may be repeated.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default: the task's).")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs, with seeds 0, 1, ... (default: the task's).")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = os.cpu_count() or 1,
    data: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST's four .gz files.")] = None,
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Show the rows of this CSV file, and run nothing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Also write the rows to this CSV file; other tasks and splits in it stay.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the rows: a .svg, .png or .pdf file.")] = None,
) -> None:
    """Run a published comparison again: a table, a plot, and which published statements hold."""
    if name is None:
        listed: list[Row] = [{"name": r.name, "paper": r.paper, "claims": r.claims} for r in REPRODUCTIONS.values()]
        show(listed, as_json=as_json, title="Write thinwire reproduce NAME.", columns=LIST)
        return
    made = get(name)
    settings = made.check(Settings(task, split, epochs, seeds, tuple(method or ()), data, jobs))
    if plot is not None:
        check_plot(plot)
    reserve(save, plot)
    rows = _run(made, settings) if recorded is None else _read(made, recorded)
    if save is not None:
        keep(save, rows)
        errors.print(f"{len(rows)} rows written to {save}", soft_wrap=True)
    if plot is not None:
        made.plot(rows, plot)
        errors.print(f"plot written to {plot}", soft_wrap=True)
    trends = made.trends(rows)
    if as_json:
        document = {"environment": records.environment(), "rows": rows, "trends": [asdict(t) for t in trends]}
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    show(made.summary(rows), as_json=False, title=made.claims, columns=made.columns)
    for trend in trends:
        if trend.holds is not None:
            typer.echo(_line(trend))


def _read(made: Reproduction, path: Path) -> list[Row]:
    """Recorded rows, if they are of this comparison."""
    rows = read(path)
    try:
        made.summary(rows)
        if rows:
            return rows
    except (KeyError, TypeError):  # columns of another comparison
        pass
    name = made.name
    raise ValueError(f"{path} has no rows of {name}; write thinwire reproduce {name} --save {name}.csv")


def _run(made: Reproduction, settings: Settings) -> list[Row]:
    """The rows, with a bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors) as progress:
        line = progress.add_task("starting", total=None)

        def say(done: int, total: int, what: str) -> None:
            progress.update(line, completed=done, total=total, description=what)

        return made.run(settings, say)


def _line(trend: Trend) -> str:
    word = "holds" if trend.holds else "does not hold"
    return f"{trend.place}: {word}: {trend.claim}. Published: {trend.published}; here: {trend.measured}."
