"""Plots of the docs, drawn from the rows in benchmarks/data: with the tables of `figures` they are `make figures`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from thinwire.lab import architecture, language_table, race_table, rate
from thinwire.lab.records import load, read
from thinwire.lab.reproduce import REPRODUCTIONS
from thinwire.lab.stragglers import pages as stragglers

Draw = Callable[[Path], None]


def drawings(data: Path) -> dict[str, Draw]:
    """The function that draws each file, by its path under docs."""
    made: dict[str, Draw] = {
        f"papers/{name}.png": partial(one.plot, read(data / f"{name}.csv")) for name, one in REPRODUCTIONS.items()
    }
    made["architecture.svg"] = architecture.plot
    made["rate.svg"] = partial(rate.plot, read(data / "rate.csv"))
    points = load(data / "race-curves.csv")
    for task, hosts, speed in race_table.races(data / "race.csv"):
        rows = race_table.read(data / "race.csv", task, hosts, speed)
        made[f"race-{task}.png"] = partial(race_table.plot, race_table.with_curves(rows, points))
    made["language.png"] = partial(language_table.plot, load(data / "language-curves.csv"))
    return {**made, **stragglers.drawings(data)}


def draw(root: Path) -> None:
    """Draw all of them."""
    import matplotlib  # noqa: PLC0415  (an extra)

    # The same rows should give the same bytes, but an SVG file holds the time of drawing and random names.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    with matplotlib.rc_context({"svg.hashsalt": "thinwire"}):
        for name, one in drawings(root / "benchmarks" / "data").items():
            one(root / "docs" / name)
