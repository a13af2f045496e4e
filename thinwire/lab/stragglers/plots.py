"""Plots."""
from pathlib import Path
from collections.abc import Sequence
from thinwire.lab.records import Row
def race(rows: Sequence[Row], path: Path) -> None:
    raise NotImplementedError
