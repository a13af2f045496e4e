"""Tables of a race with stragglers: processes beside the clock, and the clock with more workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from thinwire.lab import race_table, records
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row
from thinwire.lab.stragglers.course import contestants
from thinwire.lab.stragglers.kinds import KINDS

RUN = ("task", "stragglers", "where", "workers", "rate", "method", "seed")  # what tells runs apart
TRIED = (*RUN, "lr")
CLOSE = 0.15  # by how much the clock may differ from processes where both are said to agree
COLUMNS = {
    "method": "",
    "lr": "g",
    "reached": "",
    "seconds": ".1f",
    "on_clock": ".1f",
    "ratio": ".2f",
    "steps_per_s": ".1f",
    "per_s_clock": ".1f",
    "per_s_ratio": ".2f",
    "stale_mean": ".1f",
    "stale_max": ".0f",
}
FAR = {"method": "", "lr": "g", "reached": "", "seconds": ".1f", "stale_mean": ".1f", "stale_max": ".0f"}
GRID = {
    "method": "",
    "workers": "d",
    "lr": "g",
    "seed": "d",
    "reached": "",
    "seconds": ".1f",
    "accuracy": ".2%",
    "best": "",
}
HEAD = (
    *("method", "step size", "arrived", "seconds", "on the clock", "clock / processes"),
    *("steps per second", "on the clock", "clock / processes", "staleness: mean", "most"),
)


def keep(path: Path, rows: Sequence[Row], run: Sequence[str] = RUN) -> None:
    """Write the rows without their curves to a CSV file; rows of other runs in it stay."""
    race_table.keep(path, race_table.without_curves(rows), run)


def keep_curves(path: Path, rows: Sequence[Row]) -> None:
    """The same with the curves, a row for each test; the steps of all workers are in one field."""
    points = []
    for row in rows:
        run = {name: row[name] for name in RUN}
        for values in zip(*row["curves"].values(), strict=True):
            at = dict(zip(row["curves"], values, strict=True))
            points.append({**run, **at, "steps": " ".join(map(str, at["steps"]))})
    race_table.keep(path, points, RUN)


def with_curves(rows: Sequence[Row], points: Sequence[Mapping[str, str]]) -> list[Row]:
    """Those of the rows that have curves, with them."""
    found: dict[tuple[str, ...], dict[str, list[Any]]] = {}
    for point in points:
        curves = found.setdefault(_key(point), {"seconds": [], "accuracy": [], "loss": [], "steps": []})
        for name in ("seconds", "accuracy", "loss"):
            curves[name].append(float(point[name]))
        curves["steps"].append([int(word) for word in point["steps"].split()])
    return [{**row, "curves": found[_key(row)]} for row in rows if _key(row) in found]


def read(path: Path, stragglers: str) -> list[Row]:
    """The rows of one kind of stragglers in a CSV file; raises ValueError if there are none."""
    mine = [row for row in records.read(path) if row.get("stragglers") == stragglers]
    if not mine:
        raise ValueError(f"{path} has no race with --stragglers {stragglers}; leave --from out to run it")
    return ordered(mine)


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Contestants as they are listed, and others behind them: runs may have been filed in any order."""
    places = {family(name): place for place, name in enumerate(contestants(2))}
    return sorted(rows, key=lambda row: (row["workers"], places.get(family(row["method"]), len(places))))


def summary(rows: Iterable[Row], place: str, workers: int) -> list[Row]:
    """One line per contestant: means over seeds. Seconds are those of the seeds that arrived."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        if (row["where"], row["workers"]) == (place, workers):
            by_method.setdefault(row["method"], []).append(row)
    lines = []
    for method, some in by_method.items():
        arrived = [row["seconds"] for row in some if row["reached"]]
        known = [row for row in some if row["staleness_mean"] is not None]
        lines.append(
            {
                "method": method,
                "lr": some[0]["lr"],
                "reached": f"{len(arrived)} of {len(some)}",
                "all": len(arrived) == len(some),
                "seconds": fmean(arrived) if arrived else None,
                "lowest": min(arrived, default=None),
                "highest": max(arrived, default=None),
                "accuracy": fmean(row["accuracy"] for row in some),
                "steps_per_s": fmean(row["steps_per_s"] for row in some),
                "stale_mean": fmean(row["staleness_mean"] for row in known) if known else None,
                "stale_max": max((row["staleness_max"] for row in known), default=None),
            }
        )
    return lines


def beside(rows: Sequence[Row], workers: int) -> list[Row]:
    """Processes, and the same seeds on the clock beside them."""
    seeds = {row["seed"] for row in rows if row["where"] == "processes"}
    same = [row for row in rows if row["seed"] in seeds]
    clock = {line["method"]: line for line in summary(same, "clock", workers)}
    lines = []
    for line in summary(same, "processes", workers):
        other = clock.get(line["method"])
        both = other is not None and line["all"] and other["all"]
        lines.append(
            {
                **line,
                "on_clock": None if other is None else other["seconds"],
                "ratio": other["seconds"] / line["seconds"] if other is not None and both else None,
                "per_s_clock": None if other is None else other["steps_per_s"],
                "per_s_ratio": None if other is None else other["steps_per_s"] / line["steps_per_s"],
            }
        )
    return lines


def agreement(lines: Sequence[Row]) -> str:
    """Where clock and processes agree, in sentences."""
    told = []
    for what, name in (("steps per second", "per_s_ratio"), ("seconds to the target", "ratio")):
        known = [line for line in lines if line[name] is not None]
        near = [line["method"] for line in known if abs(line[name] - 1) <= CLOSE]
        off = [f"{line['method']} ({line[name]:.2f})" for line in known if abs(line[name] - 1) > CLOSE]
        if known:
            said = f"In {what}, clock and processes agree within {CLOSE:.0%} for {len(near)} of {len(known)} methods"
            told.append(said + (f", but not for {', '.join(off)}." if off else "."))
    return " ".join(told)


def page(rows: Sequence[Row], stragglers: str) -> str:
    """Markdown: processes beside the clock."""
    mine = [row for row in rows if row["stragglers"] == stragglers]
    raced = [row for row in mine if row["where"] == "processes"]
    workers, lines = raced[0]["workers"], beside(mine, raced[0]["workers"])
    body = [
        [
            f"`{line['method']}`",
            f"{line['lr']:g}",
            line["reached"],
            _seconds(line),
            _number(line["on_clock"], ".1f"),
            _number(line["ratio"], ".2f"),
            f"{line['steps_per_s']:.1f}",
            _number(line["per_s_clock"], ".1f"),
            _number(line["per_s_ratio"], ".2f"),
            _number(line["stale_mean"], ".1f"),
            _number(line["stale_max"], ".0f"),
        ]
        for line in lines
    ]
    load = max(row["load"] for row in raced)
    command = f"thinwire race --stragglers {stragglers} --hosts {workers} --rate {raced[0]['rate']}{_seeds(raced)}"
    busy = f" The load of the machine was at most {load:.1f}."
    return table(HEAD, body) + f"\n\n{agreement(lines)}" + where(raced[0], command) + busy


def sizes(rows: Sequence[Row]) -> str:
    """Markdown: seconds on the clock for every kind and number of workers, with the step size."""
    clock = [row for row in rows if row["where"] == "clock"]
    counts = sorted({row["workers"] for row in clock})
    body = []
    for kind in dict.fromkeys(row["stragglers"] for row in clock):
        lines: dict[str, dict[int, Row]] = {}
        for workers in counts:
            for line in summary([row for row in clock if row["stragglers"] == kind], "clock", workers):
                lines.setdefault(family(line["method"]), {})[workers] = line
        for name, by_count in lines.items():
            cells = [_far(by_count[workers]) if workers in by_count else "-" for workers in counts]
            body.append([str(KINDS.parse(kind)), f"`{name}`", *cells])
    seeds = {n: [row for row in clock if row["workers"] == n] for n in counts}
    command = "thinwire race --stragglers slow` and `--stragglers stalls`, with `" + "` and `".join(
        f"--clock {n}{_seeds(some)}" for n, some in seeds.items()
    )
    head = ["stragglers", "method", *(f"{n} workers" for n in counts)]
    return table(head, body, left=2) + where(clock[0], command)


def family(method: str) -> str:
    """One name for backup workers, whose spares follow the number of workers."""
    return "backup-workers" if method.startswith("backup-workers") else method


def _far(line: Row) -> str:
    if line["seconds"] is None:
        return f"{line['reached']}: {line['accuracy']:.1%}"
    arrived = "" if line["all"] else f", {line['reached']}"
    return f"{line['seconds']:.1f} s ({line['lr']:g}{arrived})"


def _seconds(line: Row) -> str:
    if line["seconds"] is None:
        return f"- ({line['accuracy']:.1%})"
    if line["lowest"] == line["highest"]:
        return f"{line['seconds']:.1f}"
    return f"{line['seconds']:.1f} ({line['lowest']:.1f} to {line['highest']:.1f})"


def _seeds(rows: Sequence[Row]) -> str:
    """The words that ask for these seeds."""
    return "".join(f" --seed {seed}" for seed in sorted({row["seed"] for row in rows}))


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in RUN)
