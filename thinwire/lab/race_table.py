"""The results of a race: one line per contestant with its speed-ups, the points of its curves, a plot, a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from thinwire.lab import records
from thinwire.lab.markdown import table, where
from thinwire.lab.race_steps import FAST
from thinwire.lab.records import Row

FLOAT32, POWERSGD = "ddp", "ddp powersgd-4"
RUN = ("task", "hosts", "rate", "method", "seed", "lr")  # what distinguishes one run from another
CURVES = {  # of a run, and the columns that hold their points
    "step": "step",
    "seconds": "seconds",
    "bytes_sent": "bytes_sent",
    "loss": "loss",
    "accuracy": "test_accuracy",
}
COLUMNS = {
    "method": "",
    "lr": "g",
    "reached": "",
    "steps": ".0f",
    "seconds": ".1f",
    "lowest": ".1f",
    "highest": ".1f",
    "megabytes": ".2f",
    "over_ddp": ".2f",
    "over_ddp_lowest": ".2f",
    "over_ddp_highest": ".2f",
    "over_powersgd": ".2f",
}
TRIED = {
    "method": "",
    "lr": "g",
    "reached": "",
    "steps": "d",
    "accuracy": ".2%",
    "loss": ".4f",
    "step_ms_p50": ".1f",
    "best": "",
}


def summary(rows: Sequence[Row]) -> list[Row]:
    """One row per contestant, in the order of the rows: means over seeds, and speed-ups within each seed.

    A speed-up is given where all seeds of both reached the target.
    """
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    made = []
    for method, some in by_method.items():
        seconds = [row["seconds"] for row in some]
        counted = [row["bytes_sent"] for row in some if row["bytes_sent"] is not None]
        ddp = _ratios(by_method.get(FLOAT32, []), some)
        powersgd = _ratios(by_method.get(POWERSGD, []), some)
        made.append(
            {
                "method": method,
                "lr": some[0]["lr"],
                "seeds": len(some),
                "reached": f"{sum(row['reached'] for row in some)} of {len(some)}",
                "steps": fmean(row["steps"] for row in some),
                "seconds": fmean(seconds),
                "lowest": min(seconds),
                "highest": max(seconds),
                "megabytes": fmean(counted) / 1e6 if counted else None,
                **_spread("over_ddp", ddp),
                **_spread("over_powersgd", powersgd),
            }
        )
    return made


def verdict(lines: Sequence[Row]) -> str:
    """The fastest of thinwire's own, in one sentence; empty where nothing can be compared."""
    others = (FLOAT32, FAST, "torchft ")
    known = [line for line in lines if line["over_ddp"] is not None and not line["method"].startswith(others)]
    if not known:
        return ""
    first = max(known, key=lambda line: line["over_ddp"])
    said = f"Fastest of thinwire: {first['method']}, {_times(first, 'over_ddp')} DDP in float32"
    return said + (f", {_times(first, 'over_powersgd')} DDP's PowerSGD." if first["over_powersgd"] else ".")


def points(rows: Sequence[Row]) -> list[Row]:
    """The curves as rows of their own."""
    made = []
    for row in rows:
        run = {name: row[name] for name in RUN}
        for values in zip(*(row["curves"][name] for name in CURVES), strict=True):
            at = dict(zip(CURVES.values(), values, strict=True))
            made.append({**run, **at, "step": int(at["step"]), "bytes_sent": int(at["bytes_sent"])})
    return made


def without_curves(rows: Sequence[Row]) -> list[Row]:
    """The fields that fit into a table."""
    return [{name: value for name, value in row.items() if name != "curves"} for row in rows]


def keep(path: Path, rows: Sequence[Row], run: Sequence[str] = RUN) -> None:
    """Write the rows to a CSV file; rows of other runs in that file stay, with their own machine."""
    mine = {_key(row, run) for row in rows}
    old = records.load(path) if path.exists() else []
    records.save(path, [*(row for row in old if _key(row, run) not in mine), *rows])


def read(path: Path, task: str, hosts: int, rate: str | None) -> list[Row]:
    """The runs of one race in a CSV file; raises ValueError if there are none."""
    mine = [
        row
        for row in records.read(path)
        if (row.get("task"), row.get("hosts"), row.get("rate")) == (task, hosts, rate)
    ]
    if not mine:
        raise ValueError(f"{path} has no race of {task} on {hosts} hosts at {rate}; leave --from out to run it")
    return mine


def with_curves(rows: Sequence[Row], points: Sequence[Mapping[str, str]]) -> list[Row]:
    """Rows with their curves again, from the rows of `points` as text."""
    curves: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for point in points:
        mine = curves.setdefault(_key(point), {name: [] for name in CURVES})
        for name, column in CURVES.items():
            mine[name].append(float(point[column]))
    return [{**row, "curves": curves[_key(row)]} for row in rows]


def races(path: Path) -> list[tuple[str, int, str]]:
    """The races of a CSV file: task, hosts and rate."""
    return list(dict.fromkeys((line["task"], int(line["hosts"]), line["rate"]) for line in records.load(path)))


def page(path: Path) -> str:
    """Every race of a CSV file in Markdown: a table with a line for each task and contestant."""
    body = []
    for task, hosts, rate in races(path):
        for line in summary(read(path, task, hosts, rate)):
            body.append([task, f"`{line['method']}`", *_cells(line)])
    head = [
        "task",
        "method",
        "step size",
        "arrived",
        "steps",
        "seconds",
        "MB sent",
        "times DDP",
        "times its PowerSGD",
    ]
    words = "` and `".join(
        f"thinwire race --task {task} --hosts {hosts} --rate {rate}" for task, hosts, rate in races(path)
    )
    return table(head, body, left=2) + where(records.load(path)[0], words)


def page_regions(path: Path) -> str:
    """Every race of a CSV file in Markdown, beside a network that takes no time."""
    body = []
    for task, hosts, rate in races(path):
        lines = summary(read(path, task, hosts, rate))
        fast = next((line["seconds"] for line in lines if line["method"] == FAST), None)
        for line in lines:
            slower = "-" if fast is None else f"{line['seconds'] / fast:.2f}"
            *cells, over_ddp, over_powersgd = _cells(line)
            body.append([task, rate, f"`{line['method']}`", *cells, slower, over_ddp, over_powersgd])
    head = ["task", "rate", "method", "step size", "arrived", "steps", "seconds", "MB sent", "slower"]
    head += ["times DDP", "times its PowerSGD"]
    words = "` and `".join(
        f"thinwire race --task {task} --hosts {hosts} --rate {rate}" for task, hosts, rate in races(path)
    )
    return table(head, body, left=3) + where(records.load(path)[0], words)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Loss and accuracy against seconds, one thin line per run, in the colour of its contestant."""
    from matplotlib import pyplot  # noqa: PLC0415  (an extra)

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.0, 4.8))
    colours = {name: f"C{number}" for number, name in enumerate(dict.fromkeys(row["method"] for row in rows))}
    named: set[str] = set()
    for row in rows:
        name, curves = row["method"], row["curves"]
        label = None if name in named else name
        named.add(name)
        left.plot(curves["seconds"], curves["loss"], color=colours[name], lw=1, label=label)
        right.plot(curves["seconds"], curves["accuracy"], color=colours[name], lw=1)
    first = rows[0]
    right.axhline(first["target"], color="black", lw=0.6, ls=":")
    left.set(xscale="log", yscale="log", xlabel="seconds of training", ylabel="loss since the last test")
    right.set(xscale="log", xlabel="seconds of training", ylabel="test accuracy")
    figure.legend(fontsize=8, loc="lower center", ncols=4)
    figure.suptitle(f"{first['task']}, {first['hosts']} hosts at {first['rate']}, {first['params']:,} parameters")
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path)
    pyplot.close(figure)


def _cells(line: Row) -> list[str]:
    seconds = f"{line['seconds']:.1f} ({line['lowest']:.1f} to {line['highest']:.1f})"
    times = [
        "-"
        if line[name] is None
        else f"{line[name]:.1f} ({line[f'{name}_lowest']:.1f} to {line[f'{name}_highest']:.1f})"
        for name in ("over_ddp", "over_powersgd")
    ]
    sent = "-" if line["megabytes"] is None else f"{line['megabytes']:.1f}"
    return [f"{line['lr']:g}", line["reached"], f"{line['steps']:.0f}", seconds, sent, *times]


def _key(row: Mapping[str, Any], run: Sequence[str] = RUN) -> tuple[str, ...]:
    return tuple("" if row.get(name) is None else str(row[name]) for name in run)


def _ratios(base: Sequence[Row], some: Sequence[Row]) -> list[float]:
    """Seconds of the base over seconds of the other, for every seed; empty if one did not reach the target."""
    by_seed = {row["seed"]: row for row in base}
    pairs = [(by_seed[row["seed"]], row) for row in some if row["seed"] in by_seed]
    if len(pairs) < len(some) or not all(one["reached"] for pair in pairs for one in pair):
        return []
    return [first["seconds"] / other["seconds"] for first, other in pairs]


def _spread(name: str, ratios: Sequence[float]) -> Row:
    middle, low, high = (fmean(ratios), min(ratios), max(ratios)) if ratios else (None, None, None)
    return {name: middle, f"{name}_lowest": low, f"{name}_highest": high}


def _times(line: Row, name: str) -> str:
    return f"{line[name]:.2f} times ({line[f'{name}_lowest']:.2f} to {line[f'{name}_highest']:.2f})"
