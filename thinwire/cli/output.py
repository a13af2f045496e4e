"""What the commands print: one JSON document or a table on standard output, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, JustifyMethod
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from thinwire.core.method import METHODS
from thinwire.lab import records
from thinwire.lab.records import Row
from thinwire.lab.report.words import count

errors = Console(stderr=True, highlight=False, emoji=False)  # "lognormal:-1:" is no picture


def collect(rows: Iterable[Row], what: str) -> list[Row]:
    """Gather the rows, with a line of progress on standard error."""
    done: list[Row] = []
    with line(what) as say_so:
        for row in rows:
            done.append(row)
            say_so(f"{what}: {row.get('kernel', '')} {row.get('method', '')}")
    return done


@contextmanager
def line(first: str = "starting") -> Iterator[Callable[[str], None]]:
    """A line on standard error with the time that has passed, while the block runs; say what it says from then on."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(first, total=None)
        yield lambda text: progress.update(task, description=text)


def show(
    rows: Sequence[Row],
    *,
    as_json: bool,
    title: str,
    columns: dict[str, str],
    save: Path | None = None,
    lean: bool = False,
) -> None:
    """Print the rows as JSON or as a table; `columns` maps a field to its format. A lean table has no lines."""
    keep(save, rows)
    if as_json:
        json.dump({"environment": records.environment(), "rows": list(rows)}, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    width = None if sys.stdout.isatty() else 140
    table = Table(title=title, title_justify="left", header_style="bold")
    if lean:
        table = Table(
            title=title, title_justify="left", header_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False
        )
    for name in columns:
        side: JustifyMethod = "left" if name in ("method", "kernel", "backend") else "right"
        table.add_column(name, justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name], spec) for name, spec in columns.items()))
    Console(highlight=False, width=width, emoji=False).print(table)


def say(line: str) -> None:
    """A sentence below a table."""
    Console(highlight=False, emoji=False).print(line, soft_wrap=True)


def keep(path: Path | None, rows: Sequence[Row]) -> None:
    """Write the rows to a CSV file, if one is wanted."""
    if path is not None:
        records.save(path, rows)
        errors.print(f"{count(len(rows), 'row')} written to {path}", soft_wrap=True)


def warn_of_few_rounds(method: str, steps: int) -> None:
    """Say on standard error where so many steps have too few rounds for the outer momentum of a method's id."""
    if method.partition(":")[0] not in METHODS:
        return  # a rival: DDP or torchft
    sync = METHODS.parse(method).sync
    if doubt := sync.of.too_few_rounds(steps, sync.every):
        errors.print(f"{method}: {doubt}", soft_wrap=True)


def reserve(*paths: Path | None) -> None:
    """Raise now, and not after minutes of work, when a file cannot be written; folders are made."""
    for path in filter(None, paths):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            with path.open("a"):
                pass
            if new:
                path.unlink()
        except OSError as error:
            raise ValueError(
                f"{path} cannot be written ({error.strerror}); write the name of a file in a folder of yours"
            ) from error


def _cell(value: Any, spec: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, spec)
