"""What the rows of the DeepSqueeze reproduction say: means over seeds, and tables for the page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Trend
from thinwire.lab.reproduce.deepsqueeze_trends import judge

COLUMNS = {
    "task": "",
    "split": "",
    "method": "",
    "label": "",
    "bits": ".2f",
    "megabytes": ".1f",
    "accuracy": ".2%",
    "workers": ".2%",
    "distance": ".3g",
    "eta": ".3f",
    "lr": "",
    "seeds": "d",
    "outcome": "",
}
NAMES = {
    "d-psgd": "D-PSGD",
    "dcd-psgd": "DCD",
    "ecd-psgd": "ECD",
    "choco-sgd": "CHOCO",
    "deepsqueeze": "DeepSqueeze",
}
KEY = ("task", "split", "method", "label")


def summary(rows: Sequence[Row]) -> list[Row]:
    """One row for each task, split, method and compressor; accuracy is None where a seed was lost."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["kind"] == "final":
            groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    return [_means(several) for several in groups.values()]


def _means(rows: list[Row]) -> Row:
    first, lost = rows[0], sum(1 for row in rows if row["diverged"])
    means: Row = dict.fromkeys((*COLUMNS, "lowest", "highest"))
    means |= {name: first[name] for name in (*KEY, "refused", "lr", "eta")}
    if first["refused"]:
        return means | {"outcome": "refused"}
    means |= {"seeds": len(rows), "outcome": f"div {lost}/{len(rows)}" if lost else "trained"}
    means["bits"] = fmean(row["bits_per_element"] for row in rows)
    means["megabytes"] = fmean(_sent(row) for row in rows) / 1e6
    if not lost:
        right = [row["accuracy_mean_model"] for row in rows]
        means |= {"accuracy": fmean(right), "lowest": min(right), "highest": max(right)}
        means["workers"] = fmean(row["accuracy_workers"] for row in rows)
        means["distance"] = fmean(row["consensus_distance"] for row in rows)
    return means


def _sent(row: Row) -> float:
    """Bytes that a worker sends in a whole run: of a lost one, what it would have sent."""
    return float(row["bytes"] / row["workers"] / max(1, row["steps"]) * row["planned"])


def groups(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The tasks and splits, in their order."""
    return list(dict.fromkeys((row["task"], row["split"]) for row in rows))


def trends(rows: Sequence[Row]) -> list[Trend]:
    """The published statements on each task and split."""
    return [trend for several in _judged(rows).values() for trend in several]


def _judged(rows: Sequence[Row]) -> dict[str, list[Trend]]:
    means: dict[str, list[Row]] = {}
    for row in summary(rows):
        means.setdefault(f"{row['task']}, {row['split']}", []).append(row)
    return {place: judge(several, place) for place, several in means.items()}


def accuracy(rows: Sequence[Row]) -> str:
    """Of the mean model: a table a task and split, a column a method."""
    return "\n\n".join(_accuracy(rows, *group) for group in groups(rows))


def _accuracy(rows: Sequence[Row], task: str, split: str) -> str:
    mine = [row for row in rows if (row["task"], row["split"]) == (task, split)]
    means = {(row["method"], row["label"]): row for row in summary(mine)}
    labels = dict.fromkeys(label for _, label in means)
    body = []
    for label in labels:
        here = [means.get((method, label)) for method in NAMES]
        bits = next(row["bits"] for row in here if row and not row["refused"])
        body.append([label, f"{bits:.2f}", *(map(_right, here))])
    first = next(row for row in mine if row["kind"] == "final" and not row["refused"])
    seeds = max(row["seeds"] or 0 for row in means.values())
    length = f"{first['epochs']} epochs, {first['planned']} steps, {seeds} seed{'' if seeds == 1 else 's'}"
    title = f"**{task}, {SPLITS[split]}**, {length}:"
    settings = f"--task {task} --split {split} --epochs {first['epochs']} --seeds {seeds}"
    done = where(first, f"thinwire reproduce deepsqueeze {settings} --save benchmarks/data/deepsqueeze.csv")
    return f"{title}\n\n{table(['compressor', 'bits', *NAMES.values()], body)}{done}"


SPLITS = {"iid": "images dealt at random", "label": "images sorted by label"}


def _right(row: Row | None) -> str:
    if row is None:
        return ""
    return str(row["outcome"]) if row["accuracy"] is None else f"{100 * row['accuracy']:.1f}"


def statements(rows: Sequence[Row]) -> str:
    """Published statements, and whether they hold on each task and split."""
    judged = _judged(rows)
    body = [
        [several[0].claim, several[0].published, *map(_verdict, several)]
        for several in zip(*judged.values(), strict=True)
    ]
    return table(["statement", "published", *judged], body, left=2 + len(judged))


def _verdict(trend: Trend) -> str:
    if trend.holds is None:
        return "not run"
    return f"{'yes' if trend.holds else '**no**'}: {trend.measured}"


def apart(rows: Sequence[Row]) -> str:
    """Distances, eta and the workers' own accuracy of the two methods that keep a mean."""
    means = {tuple(row[name] for name in KEY): row for row in summary(rows)}
    body = []
    for task, split in groups(rows):
        for label in dict.fromkeys(key[3] for key in means if key[2] == "deepsqueeze"):
            pair = [means.get((task, split, method, label)) for method in ("choco-sgd", "deepsqueeze")]
            if all(pair):
                cells = [_cell(row, *column) for column in APART for row in pair if row]
                body.append([f"{task}, {split}", label, *cells])
    head = [f"{what}, {name}" for what in ("eta", "distance", "workers %") for name in ("CHOCO", "DeepSqueeze")]
    return table(["task, split", "compressor", *head], body, left=2)


APART: tuple[tuple[str, str, float], ...] = (
    ("eta", ".3f", 1),
    ("distance", ".2g", 1),
    ("workers", ".1f", 100),
)


def _cell(row: Row, name: str, spec: str, times: float) -> str:
    value: Any = row[name]
    return "div" if value is None else format(times * value, spec)


def etas(rows: Sequence[Row]) -> str:
    """The library's eta beside multiples of it, seed 0."""
    body = []
    for row in rows:
        if row["kind"] == "eta":
            same = ("task", "split", "method", "label", "seed", "lr")
            mine = next(r for r in rows if r["kind"] == "final" and all(r[name] == row[name] for name in same))
            body.append(
                [
                    f"{row['task']}, {row['split']}",
                    NAMES[row["method"]],
                    row["label"],
                    f"{row['eta'] / mine['eta']:.1f} x {mine['eta']:.3f}",
                    *(_run(r, name) for name in ("accuracy_mean_model", "accuracy_workers") for r in (mine, row)),
                ]
            )
    head = [
        "task, split",
        "method",
        "compressor",
        "eta",
        "mean model %",
        "with that eta",
        "workers %",
        "with that eta",
    ]
    return table(head, body, left=3)


def _run(row: Row, name: str) -> str:
    return "div" if row["diverged"] else f"{100 * row[name]:.1f}"


SECTIONS = {"accuracy": accuracy, "statements": statements, "apart": apart, "etas": etas}
