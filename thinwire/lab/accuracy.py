"""Accuracy at equal epochs over seeds: whether the loss from compression can be seen at the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from thinwire.lab.intervals import unsure
from thinwire.lab.records import Row
from thinwire.lab.train import Job

BASELINE = "sgd"
METHODS = ("qsgd:bits=4", "ecq-sgd", "ef-signsgd:exchange=all-gather,block=64")
FIELDS = (
    "task",
    "method",
    "seed",
    "accuracy",
    "tested",
    "loss",
    "bytes_sent",
    "ratio",
    "epochs",
    "workers",
    "lr",
    "seconds",
)


def jobs(task: str, methods: Sequence[str], seeds: int, epochs: int | None, data: Path | None) -> list[Job]:
    """Every method with every seed, float32 first."""
    if seeds < 1:
        raise ValueError(f"{seeds} seeds make no runs; write --seeds 3")
    every = dict.fromkeys([BASELINE, *methods])
    return [Job(task, method, seed, epochs, data).located() for method in every for seed in range(seeds)]


def rows(records: Sequence[Row]) -> list[Row]:
    """The records without the fields that a table has no room for."""
    return [{name: record[name] for name in FIELDS} for record in records]


def summary(records: Sequence[Row]) -> list[Row]:
    """One row per method: the mean accuracy over seeds, and how many points it is above float32's.

    `unsure` is half the 95% interval of these points, which follows from the number of test images.
    """
    by_method: dict[str, list[float]] = {}
    for record in records:
        by_method.setdefault(record["method"], []).append(record["accuracy"])
    means = {method: statistics.fmean(values) for method, values in by_method.items()}
    return [
        {
            "method": method,
            "seeds": len(values),
            "accuracy": means[method],
            "lowest": min(values),
            "highest": max(values),
            "points": 100 * (means[method] - means[BASELINE]),
            "unsure": 100 * unsure(means[method], means[BASELINE], records[0]["tested"]),
        }
        for method, values in by_method.items()
    ]
