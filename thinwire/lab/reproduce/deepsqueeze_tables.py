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
    "loss": ".3g",
    "reached": ".1f",
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


REACHED = 0.5  # training loss of the mean model whose epoch is told


def summary(rows: Sequence[Row], kind: str = "final") -> list[Row]:
    """One row for each task, split, method and compressor; accuracy is None where a seed was lost."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    curves: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        if row["kind"] == kind:
            groups.setdefault(key, []).append(row)
        elif row["kind"] == "curve":
            curves.setdefault((*key, row["seed"]), []).append(row)
    return [
        _means(several, [curves.get((*key, row["seed"]), []) for row in several]) for key, several in groups.items()
    ]


def _means(rows: list[Row], curves: list[list[Row]]) -> Row:
    first, lost = rows[0], sum(1 for row in rows if row["diverged"])
    means: Row = dict.fromkeys((*COLUMNS, "lowest", "highest"))
    means |= {name: first[name] for name in (*KEY, "refused", "lr", "given", "eta")}
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
        means["loss"] = fmean(row["loss"] for row in rows)
        means["eta"] = None if first["eta"] is None else fmean(row["eta"] for row in rows)
        when = [[row["epochs"] for row in curve if row["loss"] < REACHED] for curve in curves]
        means["reached"] = fmean(map(min, when)) if all(when) else None
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


def own(rows: Sequence[Row]) -> str:
    """The library's eta beside the tuned one: what each is, and the accuracy of the mean model with it."""
    tuned = {tuple(row[name] for name in KEY): row for row in summary(rows)}
    chosen = {tuple(row[name] for name in KEY): row for row in summary(rows, "own")}
    body = []
    for key, best in tuned.items():
        if key[2] in MIXES:
            mine = chosen.get(key, best)  # the library's was the best of the grid
            both = [row["accuracy"] for row in (mine, best)]
            points = "" if None in both else f"{100 * (both[0] - both[1]):+.1f}"
            place = [f"{key[0]}, {key[1]}", NAMES[key[2]], key[3]]
            body.append([*place, *_setting(mine), *_setting(best), points])
    head = ["task, split", "method", "compressor", "own eta", "rate", "%", "tuned eta", "rate", "%", "points"]
    return table(head, body, left=3)


MIXES = ("choco-sgd", "deepsqueeze")


def _setting(row: Row) -> list[str]:
    follows = "up to " if row["given"] is None and row["method"] == "deepsqueeze" else ""
    eta = f"{follows}{row['eta']:.2f}" if row["given"] is None else f"{row['given']:g}"
    return [eta, f"{row['lr']:g}", _right(row)]


def apart(rows: Sequence[Row]) -> str:
    """Distances and the workers' own accuracy of the two methods that keep a mean, tuned."""
    means = {tuple(row[name] for name in KEY): row for row in summary(rows)}
    body = []
    for task, split in groups(rows):
        for label in dict.fromkeys(key[3] for key in means if key[2] == "deepsqueeze"):
            pair = [means.get((task, split, method, label)) for method in MIXES]
            if all(pair):
                cells = [_cell(row, *column) for column in APART for row in pair if row]
                body.append([f"{task}, {split}", label, *cells])
    head = [f"{what}, {name}" for what in ("distance", "workers %", "loss") for name in ("CHOCO", "DeepSqueeze")]
    return table(["task, split", "compressor", *head], body, left=2)


APART: tuple[tuple[str, str, float], ...] = (
    ("distance", ".2g", 1),
    ("workers", ".1f", 100),
    ("loss", ".2g", 1),
)


def _cell(row: Row, name: str, spec: str, times: float) -> str:
    value: Any = row[name]
    return "div" if value is None else format(times * value, spec)


SECTIONS = {"accuracy": accuracy, "statements": statements, "own": own, "apart": apart}
