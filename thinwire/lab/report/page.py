"""The page: whole, self-contained, readable on a phone, in light and in dark, and on paper.

Nothing is fetched, and the page's own policy forbids it: one script is allowed, by its hash, and no address.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from thinwire.lab.records import Row
from thinwire.lab.report import bars, charts, curves, summary
from thinwire.lab.report.groups import Group, finding, groups, told_apart
from thinwire.lab.report.runs import MAIN, Run
from thinwire.lab.report.series import Series
from thinwire.lab.report.table import generic
from thinwire.lab.report.words import count, plain

HERE = Path(__file__).parent
OPEN = 12  # rows of a table that is shown unfolded
NAMED = 3  # runs whose names fit into a heading
PRESS = "Press a name to hide its lines; point at it, or at a row of the table, to see it alone."
SCALE = "All bars have one scale."


def page(runs: Sequence[Run], title: str = "") -> str:
    """The whole page."""
    shown = told_apart(runs)
    parts = groups(shown)
    stepped, sent = charts.times(parts), charts.bits(parts, shown)
    series = Series.of(part.method for part in [*parts, *(p for chart in sent for p in chart.parts)])
    title = title or headline(runs, parts)
    script = (HERE / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    sections = [
        _section("summary", "Summary", summary.tables(parts, series)),
        _section("curves", "Loss", curves.blocks(parts, series), f"{curves.points_of(parts)} {PRESS}"),
        _section("time", "Time of a step", bars.time_bars(stepped, series), SCALE),
        _section("bits", "Bits per element", bars.bit_bars(sent, series), SCALE),
        _section("rows", "All rows", _tables(runs, alone=not parts)),
        _section("runs", "Commands and versions", "\n".join(map(_made_with, runs))),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<link rel="icon" href="data:,"><title>thinwire: {escape(title)}</title>',
            f"<style>{series.style}</style></head><body>",
            f"<header><h1>{escape(title)}</h1>",
            *(f"<p>{escape(said)}</p>" for said in _findings(parts)),
            "</header>",
            *filter(None, sections),
            f"<script>{script}</script></body></html>",
            "",
        ]
    )


def headline(runs: Sequence[Run], parts: Sequence[Group]) -> str:
    """The title of the page, where none is given."""
    places, methods = {_place(part) for part in parts}, {part.method for part in parts}
    if len(places) == 1 and places != {""}:
        return f"{places.pop()}: " + (f"{len(methods)} methods" if len(methods) > 1 else methods.pop())
    return ", ".join(run.name for run in runs) if len(runs) <= NAMED else f"{len(runs)} runs"


def _findings(parts: Sequence[Group]) -> list[str]:
    """A sentence for each task on which methods trained equally long; it names the task where there are several."""
    tasks: dict[str, list[Group]] = {}
    for part in parts:
        tasks.setdefault(_place(part), []).append(part)
    said = {place: text for place, some in tasks.items() if (text := finding(some))}
    return [f"{place}: {text}" if len(said) > 1 else text for place, text in said.items()]


def _place(part: Group) -> str:
    """Task, workers and epochs, as far as they are known; nothing for a step."""
    task, workers, epochs = (part.settings[name] for name in ("task", "workers", "epochs"))
    known = {plain(task): task, count(workers, "worker"): workers, count(epochs, "epoch"): epochs}
    return ", ".join(text for text, value in known.items() if value is not None) if task is not None else ""


def _section(name: str, title: str, body: str, note: str = "") -> str:
    if not body:
        return ""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{body}\n{said}</section>'


def _tables(runs: Sequence[Run], *, alone: bool) -> str:
    """Every table of every file; long ones are folded unless there is nothing else to see."""
    made = []
    for run in runs:
        for name, rows in run.tables.items():
            label = run.name if name == MAIN else f"{run.name}: {name}"
            opened = " open" if alone or (name != MAIN and len(rows) <= OPEN) else ""
            head = f"<summary>{escape(label)}, {count(len(rows), 'row')}</summary>"
            made.append(f"<details{opened}>{head}\n{generic(rows, label)}</details>")
    return "\n".join(made)


def _made_with(run: Run) -> str:
    """The command, machine and versions of one file."""
    lines = [f"<h3>{escape(run.name)}</h3>"]
    for facts in run.environments:
        command = facts.get("command")
        lines.append(f"<pre><code>{escape(plain(command))}</code></pre>" if command else "")
        lines.append(f'<dl class="facts">{_facts(facts)}</dl>')
    if not run.environments:
        lines.append('<p class="note">The file does not say how it was made.</p>')
    elif not any(facts.get("command") for facts in run.environments):
        lines.append('<p class="note">The file does not say which command made it.</p>')
    return "\n".join(filter(None, lines))


def _facts(facts: Row) -> str:
    return "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(plain(value))}</dd></div>"
        for name, value in facts.items()
        if name != "command"
    )
