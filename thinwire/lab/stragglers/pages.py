"""What docs/stragglers.md shows, from the rows in benchmarks/data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from thinwire.lab import records
from thinwire.lab.stragglers import plots, table

ROWS, CURVES = "race-stragglers.csv", "race-stragglers-curves.csv"
SHOWN = ("slow", "stalls")


def beside(kind: str, data: Path) -> str:
    """Processes beside the clock."""
    return table.page(table.read(data / ROWS, kind), kind)


def sizes(data: Path) -> str:
    """More workers, on the clock."""
    return table.sizes([row for kind in SHOWN for row in table.read(data / ROWS, kind)])


TABLES: dict[str, Callable[[Path], str]] = {
    **{f"stragglers-{kind}": partial(beside, kind) for kind in SHOWN},
    "stragglers-sizes": sizes,
}


def drawings(data: Path) -> dict[str, Callable[[Path], None]]:
    """The function that draws each file, by its path under docs."""
    made: dict[str, Callable[[Path], None]] = {}
    points = records.load(data / CURVES)
    for kind in SHOWN:
        rows = table.with_curves(table.read(data / ROWS, kind), points)
        made[f"stragglers-{kind}.png"] = partial(plots.curves, rows)
        made[f"stragglers-{kind}-workers.png"] = partial(plots.workers, rows)
        made[f"stragglers-{kind}-staleness.png"] = partial(plots.staleness, rows)
    return made
