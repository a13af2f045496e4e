"""`thinwire report`: one self-contained HTML page from recorded runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.output import reserve
from thinwire.lab.report import page, read_all
from thinwire.lab.report.words import count


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Files that --json or --save of any command made.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write the HTML page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page (default: made from the runs).")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Make one HTML page of recorded runs: sortable tables, curves, time, bits, commands and versions."""
    if out.resolve() in {path.resolve() for path in runs}:
        raise ValueError(f"{out} is one of the runs; write --out report.html")
    found = read_all(runs)
    reserve(out)
    out.write_text(page(found, title), encoding="utf-8")
    rows = sum(len(some) for run in found for some in run.tables.values())
    facts = {"page": str(out), "runs": len(found), "rows": rows, "bytes": out.stat().st_size}
    typer.echo(json.dumps(facts) if as_json else f"{out}: {count(len(found), 'run')}, {count(rows, 'row')}")
