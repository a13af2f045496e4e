"""The table of steps under two of TCP's ways to control congestion, from the rows of benchmarks/congestion.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from thinwire.lab.markdown import contestant, table, where
from thinwire.lab.records import load

COMMAND = "python benchmarks/congestion.py"
NAMES = {"cubic": "cubic", "bbr": "BBR"}
LEFT_OUT = ("no communication", "ddp powersgd-4")  # they hardly use the link


def page(file: Path) -> str:
    """A row per method, with a column for each way."""
    rows = load(file)
    groups: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["method"] not in LEFT_OUT:
            groups.setdefault(row["method"], {})[row["congestion"]] = _cell(row)
    body = [[contestant(method), *(cells[way] for way in NAMES)] for method, cells in groups.items()]
    return table(["method", *(f"{name}, ms" for name in NAMES.values())], body) + where(rows[0], COMMAND)


def _cell(row: Mapping[str, str]) -> str:
    low, middle, high = (float(row[name]) for name in ("step_ms_p20", "step_ms", "step_ms_p80"))
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"
