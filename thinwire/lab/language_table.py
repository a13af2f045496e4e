"""Results of `bench language`: one line per contestant, the points of its curves, a plot, a table for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from thinwire.lab import race_table, records
from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row

FLOAT32 = "ddp"
RUN = ("hosts", "rate", "params", "steps", "method", "seed")
CURVES = ("step", "seconds", "bytes_sent", "loss", "held_out")
COLUMNS = {
    "method": "",
    "seeds": "d",
    "held_out": ".4f",
    "over_ddp": "+.2%",
    "seconds": "",
    "megabytes": ",.1f",
    "sooner": ".1f",
}


def keep(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows to a CSV file; those of other runs in it stay."""
    race_table.keep(path, rows, RUN)


def points(rows: Sequence[Row]) -> list[Row]:
    """The curves as rows of their own."""
    made = []
    for row in rows:
        for values in zip(*(row["curves"][name] for name in CURVES), strict=True):
            made.append({**{name: row[name] for name in RUN}, **dict(zip(CURVES, values, strict=True))})
    return made


def summary(rows: Sequence[Row]) -> list[Row]:
    """Means over seeds; the loss as a share above DDP's of the same seeds, and how much sooner all is read."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    ddp = {row["seed"]: row for row in by_method.get(FLOAT32, [])}
    made = []
    for method, some in by_method.items():
        base = [ddp[row["seed"]] for row in some if row["seed"] in ddp]
        alike = len(base) == len(some)
        seconds = fmean(row["seconds"] for row in some)
        held_out = fmean(row["held_out"] for row in some)
        made.append(
            {
                "method": method,
                "seeds": len(some),
                "held_out": held_out,
                "over_ddp": held_out / fmean(row["held_out"] for row in base) - 1 if alike else None,
                "seconds": f"{seconds:,.1f}" + "*" * bool(some[0]["extrapolated"]),
                "megabytes": fmean(row["bytes_sent"] for row in some) / 1e6,
                "sooner": fmean(row["seconds"] for row in base) / seconds if alike else None,
            }
        )
    return made


def page(path: Path) -> str:
    """The table of a CSV file in Markdown."""
    rows = records.read(path)
    body = []
    for line in summary(rows):
        over = "-" if line["over_ddp"] is None else f"{line['over_ddp']:+.2%}"
        sooner = "-" if line["sooner"] is None else f"{line['sooner']:.1f}"
        body.append(
            [
                f"`{line['method']}`",
                str(line["seeds"]),
                f"{line['held_out']:.4f}",
                over,
                line["seconds"],
                f"{line['megabytes']:,.1f}",
                sooner,
            ]
        )
    first = rows[0]
    command = f"thinwire bench language --hosts {first['hosts']} --rate {first['rate']} --steps {first['steps']}"
    head = ["method", "seeds", "validation loss", "above DDP", "seconds", "MB sent", "times DDP"]
    return table(head, body, left=1) + where(records.load(path)[0], command)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Validation loss against seconds and against bytes, one thin line per run."""
    from matplotlib import pyplot  # noqa: PLC0415  (an extra)

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.0, 4.8), sharey=True)
    names = list(dict.fromkeys(str(row["method"]) for row in rows))
    for number, name in enumerate(names):
        seeds = dict.fromkeys(row["seed"] for row in rows if row["method"] == name)
        for at, seed in enumerate(seeds):
            mine = [row for row in rows if (row["method"], row["seed"]) == (name, seed)]
            loss = [float(row["held_out"]) for row in mine]
            label = name if at == 0 else None
            left.plot([float(row["seconds"]) for row in mine], loss, color=f"C{number}", lw=1, label=label)
            right.plot([float(row["bytes_sent"]) / 1e6 for row in mine], loss, color=f"C{number}", lw=1)
    left.set(xscale="log", xlabel="seconds of training", ylabel="validation loss, nats per byte")
    right.set(xscale="log", xlabel="megabytes sent by the busiest host")
    figure.legend(fontsize=8, loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path)
    pyplot.close(figure)
