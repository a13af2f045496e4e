"""`thinwire topology`: degree, spectral gap, bytes and a drawing of a graph, or the list of all graphs."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from thinwire.cli.output import errors, reserve, show
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.payload import HEADER
from thinwire.core.types import Layout
from thinwire.lab.catalogue import about
from thinwire.lab.records import Row
from thinwire.topology import TOPOLOGIES, Topology, check_topology, gap, get, largest_pull
from thinwire.topology.picture import CIRCLE, caption, neighbours, picture
from thinwire.topology.plot import check_plot, plot
from thinwire.topology.refusals import steps

RANKS = 8
LISTED = (8, 16, 64)
LIST = {"topology": "", "degree_64": "", **{f"gap_{n}": ".5f" for n in LISTED}, "about": ""}


def topology(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Topology id; leave it out to list all.")] = None,
    workers: Annotated[int | None, typer.Option(help=f"Ranks (default: {RANKS}, or those of the graph).")] = None,
    params: Annotated[int, typer.Option(help="Parameters of the model that the ranks exchange.")] = 24 << 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    file: Annotated[
        Path | None, typer.Option("--plot", help="Also plot W and the graph: a .svg, .png or .pdf file.")
    ] = None,
) -> None:
    """Show a graph: neighbours, spectral gap, bytes per step beside an all-reduce, and a drawing."""
    if name is None:
        if workers is not None or file is not None:
            raise ValueError("which graph? write thinwire topology ring --workers 8")
        title = f"Graphs, with their default settings. gap_{LISTED[0]}: spectral gap per step of {LISTED[0]} ranks."
        show([_listed(known) for known in TOPOLOGIES], as_json=as_json, title=title, columns=LIST)
        return
    graph = get(name)
    n = workers if workers is not None else graph.size or RANKS
    if n < 1 or params < 1:
        raise ValueError("workers and params are positive numbers; write --workers 8 --params 25165824")
    if file is not None:
        check_plot(file)
        reserve(file)
    check_topology(graph, n)
    row = facts(graph, n, params)
    if file is not None:
        plot(graph, n, file)
        errors.print(f"plot written to {file}", soft_wrap=True)
    if as_json:
        show([row], as_json=True, title="", columns={})
        return
    title = f"{graph.id}, {n} ranks, {params:,} parameters."
    show(_table(row), as_json=False, title=title, columns={"": "", graph.name: "", "ring all-reduce": ""})
    _draw(graph, n)


def facts(graph: Topology, n: int, params: int) -> Row:
    """What a graph of n ranks costs and does. Bytes per step are of the busiest rank, averaged over a period."""
    seen = steps(graph, n)
    degrees = [[len(graph.around(rank, n, step).peers) for rank in range(n)] for step in seen]
    sent = sum(max(some) for some in degrees) / len(seen)
    float32, coded = 4 * params, HEADER.size + Qsgd(bits=4).nbytes(Layout.flat(params))
    ring = 2 * (n - 1) / n
    links = max(sum(some) for some in degrees)
    mixing = gap(graph, n)
    return {
        "topology": graph.id,
        "workers": n,
        "params": params,
        "directed": graph.directed,
        "period": graph.period(n),
        "degree_min": min(map(min, degrees)),
        "degree_max": max(map(max, degrees)),
        "edges": links if graph.directed else links // 2,
        "spectral_gap": mixing,
        "steps_10x": _tenth(mixing, graph.period(n)),
        "largest_pull": largest_pull(graph, n),
        "bytes_float32": round(sent * float32),
        "bytes_4bit": round(sent * coded),
        "all_reduce_bytes_float32": round(ring * float32),
        "all_reduce_bytes_4bit": round(ring * coded),
        "neighbours": [sorted(graph.around(rank, n).sources) for rank in range(n)],
    }


def _tenth(mixing: float, period: int | None) -> float | None:
    """Steps until the ranks disagree ten times less; None if they never do."""
    if mixing < 1e-12:
        return None
    return math.log(10) / -math.log(1 - mixing) if mixing < 1 else float(period or 1)


def _table(row: Row) -> list[Row]:
    lines: list[tuple[str, Any, Any]] = [
        ("ranks that a rank sends to", _span(row["degree_min"], row["degree_max"]), None),
        ("directed links" if row["directed"] else "edges", f"{row['edges']:,}", None),
        ("spectral gap per step", f"{row['spectral_gap']:.5f}", "1.00000"),
        ("steps to disagree 10x less", None if row["steps_10x"] is None else f"{row['steps_10x']:,.1f}", "1.0"),
        ("bytes sent per step, float32", f"{row['bytes_float32']:,}", f"{row['all_reduce_bytes_float32']:,}"),
        ("bytes sent per step, qsgd:bits=4", f"{row['bytes_4bit']:,}", f"{row['all_reduce_bytes_4bit']:,}"),
    ]
    name = row["topology"].partition(":")[0]
    return [{"": what, name: value, "ring all-reduce": other} for what, value, other in lines]


def _draw(graph: Topology, n: int) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    if console.options.ascii_only:  # the terminal cannot show braille
        typer.echo(neighbours(graph, n))
        return
    drawn = picture(graph, n).splitlines()
    listed = ["takes from", *neighbours(graph, n).splitlines()] if n <= CIRCLE else []
    wide = max(map(len, drawn)) + 4
    if wide + max(map(len, listed), default=0) <= console.width:
        drawn = [f"{a:<{wide}}{b}".rstrip() for a, b in zip_longest(drawn, listed, fillvalue="")]
    typer.echo("\n".join([caption(graph, n), "", *drawn]))


def _listed(name: str) -> Row:
    make = TOPOLOGIES[name]
    row: Row = {**dict.fromkeys(LIST), "topology": name}
    row["about"] = about(make)
    with suppress(ValueError):  # a graph of the user's own needs arguments
        graph = make()
        degrees = [len(graph.around(rank, 64).peers) for rank in range(64)]
        row |= {"degree_64": _span(min(degrees), max(degrees)), **{f"gap_{n}": gap(graph, n) for n in LISTED}}
    return row


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
