"""One self-contained HTML page of a comparison: a table, and the loss against steps, bytes and seconds.

No script, no font and no picture is fetched. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from thinwire.lab.plot import Axis, Line, plot

COLOURS = (  # light, dark; the first is the text's own
    ("#1c1c1c", "#f0f0f0"),
    ("#0072b2", "#5ab4f0"),
    ("#d55e00", "#ff8a3c"),
    ("#008a63", "#2fd0a0"),
    ("#b5489a", "#ef8ccf"),
    ("#a77600", "#e8c34a"),
    ("#6b4fc8", "#ab98ff"),
    ("#8a5a3c", "#cfa07c"),
    ("#5f7a00", "#b4d645"),
    ("#c2263f", "#ff7185"),
)
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5c5c5c; --rule: #e2e2e2; --paper: #ffffff; %s }
@media (prefers-color-scheme: dark) {
  :root { --ink: #f0f0f0; --soft: #a8a8a8; --rule: #383838; --paper: #161616; %s } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 78rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; }
p { max-width: 46rem; margin: .5rem 0; }
small, .note { color: var(--soft); font-size: .875rem; }
code { font: .9em ui-monospace, monospace; }
pre, .wide { overflow-x: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .8rem; margin: .75rem 0; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .8rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; font-size: .875rem; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.key { display: inline-block; width: 1.4rem; height: 4px; border-radius: 2px; margin-right: .6rem;
  vertical-align: middle; background: var(--c); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%%), 1fr)); gap: 1rem; }
svg { width: 100%%; height: auto; display: block; font: 12px system-ui, sans-serif; }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
.grid { stroke: var(--rule); fill: none; }
.title { font-size: 14px; font-weight: 600; fill: var(--ink); }
.tick, .label { fill: var(--soft); } .end { text-anchor: end; } .middle, .label { text-anchor: middle; }
"""
LOSS = Axis("", log=True)


def page(rows: Sequence[Mapping[str, Any]], command: str, environment: Mapping[str, Any]) -> str:
    """The whole page; each row is a record of `thinwire.lab.train`, with its curves."""
    first = rows[0]
    title = f"{first['task']}: {len(rows)} methods, {first['workers']} workers, {first['epochs']} epochs"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>thinwire: {escape(title)}</title>",
            f"<style>{_style(len(rows))}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f"<p>{escape(_finding(rows))}</p>",
            f"<pre><code>{escape(command)}</code></pre>",
            _table(rows),
            f'<div class="plots">{_plots(rows)}</div>',
            f'<p class="note">{escape(_terms(first))}</p>',
            f"<p><small>{escape(_made_with(environment))}</small></p>",
            "</body></html>",
            "",
        ]
    )


def bytes_of(n: float) -> str:
    """`n` bytes in a unit that leaves at most three figures before the point.

    >>> bytes_of(141_000_000), bytes_of(512)
    ('141 MB', '512 B')
    """
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(max(0, (len(f"{n:.0f}") - 1) // 3), len(units) - 1)
    return f"{n / 1000**power:.3g} {units[power]}"


def _style(count: int) -> str:
    light, dark = (" ".join(f"--c{i}: {pair[mode]};" for i, pair in enumerate(COLOURS)) for mode in (0, 1))
    rules = []
    for i in range(count):
        dashes = f" stroke-dasharray: {3 * (i // len(COLOURS))} 3;" if i >= len(COLOURS) else ""
        rules.append(f".s{i} {{ --c: var(--c{i % len(COLOURS)});{dashes} }}")
        rules.append(f"body:has(tr.s{i}:hover) .line:not(.s{i}) {{ opacity: .15; }}")
    return STYLE % (light, dark) + "\n".join(rules)


def _finding(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence with the numbers that matter: the smallest traffic within half a point of the best."""
    best = max(row["accuracy"] for row in rows)
    near = [row for row in rows if row["accuracy"] >= best - 0.005]
    least = max(near, key=lambda row: row["ratio"])
    if least["ratio"] < 1.05:
        return f"Best accuracy: {best:.1%}. No method within half a point of it sent fewer bytes than float32."
    return (
        f"Among the methods within half a point of the best accuracy ({best:.1%}), {least['method']} sent least: "
        f"{bytes_of(least['bytes_sent'])} a worker, {least['ratio']:.1f} times less than a float32 ring all-reduce, "
        f"at {least['accuracy']:.1%}."
    )


def _terms(first: Mapping[str, Any]) -> str:
    ring = 64 * (first["workers"] - 1) / first["workers"]
    return (
        "Bytes are what one worker sent in all, counted where they are sent. Smaller by: the bytes of a float32 ring "
        "all-reduce over those. Bits an element: what a worker sends for one element in one step; that ring's are "
        f"{ring:g}. Seconds are of the training steps with all workers on one machine: they show what a method costs "
        "in computing, and not what it saves on a slow network. Loss is over the last epoch, accuracy over the test "
        f"images. Seed {first['seed']}."
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("method", "accuracy", "bytes sent", "smaller by", "bits an element", "seconds", "loss", "replicas equal")
    lines = ["".join(f"<th>{name}</th>" for name in head)]
    for number, row in enumerate(rows):
        cells = (
            f'<span class="key s{number}"></span><code>{escape(row["method"])}</code>',
            f"{row['accuracy']:.1%}",
            bytes_of(row["bytes_sent"]),
            f"{row['ratio']:.1f}x",
            f"{row['bits_per_element']:.2f}",
            f"{row['seconds']:.1f}",
            f"{row['loss']:.4f}",
            "yes" if row["replicas_equal"] else "no",
        )
        lines.append("".join(f"<td>{cell}</td>" for cell in cells))
    body = "\n".join(f'<tr class="s{n}">{line}</tr>' for n, line in enumerate(lines[1:]))
    return f'<div class="wide"><table><thead><tr>{lines[0]}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _plots(rows: Sequence[Mapping[str, Any]]) -> str:
    axes = {
        "step": ("Loss against steps", Axis("steps")),
        "bytes_sent": ("Loss against bytes sent", Axis("bytes sent by one worker", log=True, write=bytes_of)),
        "seconds": ("Loss against seconds", Axis("seconds of training")),
    }
    made = []
    for name, (title, across) in axes.items():
        lines = [Line(row["method"], row["curves"][name], _smooth(row["curves"]["loss"])) for row in rows]
        made.append(f"<div>{plot(title, lines, across, LOSS)}</div>")
    return "\n".join(made)


def _smooth(values: Sequence[float]) -> list[float]:
    """The mean of up to 9 points around each."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i - 4) : i + 5])]


def _made_with(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['date']}, thinwire {facts['thinwire']} ({facts['commit']}), torch {facts['torch']}, "
        f"Python {facts['python']}, {facts['device']} with {facts['cores']} cores."
    )
