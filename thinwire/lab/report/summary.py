"""Summary: one line per method, with means over seeds; training runs and training steps have separate tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, final

from thinwire.lab.intervals import interval
from thinwire.lab.report.groups import ACCURACIES, SETTINGS, Group
from thinwire.lab.report.series import Series
from thinwire.lab.report.table import Column, column, table
from thinwire.lab.report.words import bytes_of, ms, plain, same

LAST = ("lr", "eta")  # settings that follow the numbers
LOCAL = (
    "With all workers on one machine and no slow link between them, seconds show what a method costs in computing, "
    "and not what it saves."
)
FORECAST = (
    "Seconds are no measurement but a forecast: the runs had no link between them, and the virtual clock says how "
    "long their messages would take on one of the given rate."
)
INTERVAL = (
    "Beside an accuracy is its 95% interval, which follows from the number of test images; differences within it are "
    "none."
)


@final
@dataclass(frozen=True)
class Measured:
    """The heading of a column, how its numbers are written, and what they mean."""

    label: str
    write: Callable[[float], str]
    about: str = ""


MEASURED = {
    "accuracy": Measured("accuracy", lambda v: f"{v:.2%}", "Accuracy is over the test set."),
    "accuracy_mean_model": Measured(
        "accuracy", lambda v: f"{v:.2%}", "Accuracy is that of the workers' mean model over the test set."
    ),
    "bytes_sent": Measured(
        "bytes sent", bytes_of, "Bytes sent are those of one worker in all, counted where they are sent."
    ),
    "bytes": Measured("bytes", bytes_of, "Bytes are those sent by all workers together."),
    "ratio": Measured(
        "smaller by",
        lambda v: f"{v:.1f}x",
        "Smaller by is the ratio of the bytes of a float32 ring all-reduce to those.",
    ),
    "bits_per_element": Measured(
        "bits per element",
        lambda v: f"{v:.2f}",
        "Bits per element are those that a worker sends for one element in one step; a float32 ring all-reduce sends "
        "64 (n - 1) / n with n workers.",
    ),
    "seconds": Measured(
        "seconds",
        lambda v: f"{v:.1f}",
        "Seconds are those of the training steps, without loading and testing.",
    ),
    "faster": Measured(
        "sooner",
        lambda v: f"{v:.1f}x",
        "Sooner is the ratio of the seconds of float32 (the method sgd) with the same optimizer to those.",
    ),
    "step_ms": Measured("step, ms", ms, "The time of a step is a median."),
    "ddp_ms": Measured("DDP, ms", ms, "DDP is torch's DistributedDataParallel in float32, in the same run."),
    "wire_share": Measured(
        "wire share",
        lambda v: f"{v:.0%}",
        "Wire share is the time of the bytes at the link's full rate over the time of the step.",
    ),
    "speedup": Measured("speed-up", lambda v: f"{v:.2f}x", "Speed-up is over DDP's float32."),
    "loss": Measured("loss", lambda v: f"{v:.4f}", "Loss is that at the end of training, of the curves' last point."),
}


def tables(parts: Sequence[Group], series: Series) -> str:
    """The tables, each with what its columns mean."""
    kinds = {
        "Training": [part for part in parts if not part.stepped],
        "A training step": [part for part in parts if part.stepped],
    }
    return "\n".join(_table(title, some, series) for title, some in kinds.items() if some)


def _table(title: str, parts: Sequence[Group], series: Series) -> str:
    settings: dict[str, list[Any]] = {"run": [part.run for part in parts]}
    settings |= {name: [part.settings[name] for part in parts] for name in SETTINGS if name != "method"}
    differ = {name: values for name, values in settings.items() if len(set(map(plain, values))) > 1}
    common = {name: values[0] for name, values in settings.items() if name not in differ and name != "run"}
    shown = [name for name in MEASURED if any(part.mean(name) is not None for part in parts)]
    columns = [
        Column("method", [series.named(part.method) for part in parts], [part.method for part in parts]),
        *(column(name, values) for name, values in differ.items() if name not in LAST),
        *(_measured(name, parts) for name in shown),
        *_equal(parts),
        *_seeds(parts),
        *(column(name, values) for name, values in differ.items() if name in LAST),
    ]
    terms = " ".join([*(MEASURED[name].about for name in shown), *_notes(parts, shown)])
    return "\n".join(
        [
            f"<h3>{escape(title)}</h3>",
            same(common),
            table(columns, title, [series.mark(part.method) for part in parts]),
            f'<p class="note">{escape(terms)}</p>',
        ]
    )


def _notes(parts: Sequence[Group], shown: Sequence[str]) -> list[str]:
    """What the terms of the columns do not say."""
    made = []
    if any(_tested(part) for part in parts):
        made.append(INTERVAL)
    if any(part.settings["timing"] == "forecast" for part in parts):
        made.append(FORECAST)
    elif "seconds" in shown and not any(part.settings["rate"] for part in parts):
        made.append(LOCAL)
    return made


def _seeds(parts: Sequence[Group]) -> list[Column]:
    counts = [len(part.rows) for part in parts]
    return [column("seeds", counts)] if max(counts) > 1 else []


def _measured(name: str, parts: Sequence[Group]) -> Column:
    kind, cells, keys = MEASURED[name], [], []
    for part in parts:
        value = part.mean(name)
        text = "-" if value is None else kind.write(value) if math.isfinite(value) else f"{value}"
        cells.append(escape(text) + _range(name, part))
        keys.append(None if value is None or math.isnan(value) else value)
    return Column(escape(kind.label), cells, keys)


def _range(name: str, part: Group) -> str:
    """What the test images say of an accuracy; without their number, the lowest and the highest of several seeds."""
    value = part.mean(name)
    if name not in ACCURACIES or value is None:
        return ""
    tested, seeds = _tested(part), [row[name] for row in part.rows]
    if tested and 0 <= value <= 1:
        low, high = interval(value, tested)
    elif len(seeds) > 1:
        low, high = min(seeds), max(seeds)
    else:
        return ""
    return f" <small>{100 * low:.2f} to {100 * high:.2f}</small>"


def _tested(part: Group) -> int:
    """The images of the test; 0 where the file does not say."""
    return int(part.finite("tested") or 0)


def _equal(parts: Sequence[Group]) -> list[Column]:
    """Whether replicas are equal after training, where the rows say it."""
    said = [[row.get("replicas_equal") for row in part.rows] for part in parts]
    values = [all(some) if None not in some else None for some in said]
    return [column("replicas_equal", values)] if any(value is not None for value in values) else []
