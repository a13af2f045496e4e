"""Runs: what a report is made from. A run is a file with rows, and the machine, versions and command behind them.

A JSON document of any command is `{"environment": {...}, "rows": [...], ...}`. Other JSON is taken as it comes: a
list is rows; an object's lists of objects are tables, and its other fields are a row. A CSV file has the environment
in its columns; where one file has rows of several machines, all of these are kept.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from thinwire.lab.records import FACTS, Row, load, value

KNOWN = (*FACTS, "command")
MAIN = "rows"
HINT = "write thinwire demo --json > demo.json, and then thinwire report demo.json"


@final
@dataclass(frozen=True)
class Run:
    """The tables of one file by name, and every environment that its rows come from."""

    name: str
    tables: Mapping[str, Sequence[Row]]
    environments: Sequence[Row]

    @property
    def rows(self) -> Sequence[Row]:
        """What the command measured; empty in a document of another shape."""
        return self.tables.get(MAIN, ())


def read_all(paths: Sequence[Path]) -> list[Run]:
    """Every file; files of the same name are distinguished by their folder."""
    names = Counter(path.name for path in paths)
    return [read(path, "/".join(path.absolute().parts[-2:]) if names[path.name] > 1 else path.name) for path in paths]


def read(path: Path, name: str = "") -> Run:
    """One file; raises ValueError if there is nothing to show."""
    if not path.exists():
        raise ValueError(f"there is no file {path}; {HINT}")
    made = _csv if path.suffix.lower() == ".csv" else _json
    try:
        tables, environments = made(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; {HINT}") from None
    tables = {key: rows for key, rows in tables.items() if rows}
    if not any(row for rows in tables.values() for row in rows):
        raise ValueError(f"{path} holds no rows; {HINT}")
    return Run(name or path.name, tables, environments)


def _csv(path: Path) -> tuple[dict[str, list[Row]], list[Row]]:
    try:
        lines = load(path)
    except csv.Error as error:
        raise ValueError(f"{path} is not CSV: {error}; {HINT}") from None
    environments: list[Row] = []
    for line in lines:
        facts = {key: line[key] for key in KNOWN if line.get(key)}
        if facts and facts not in environments:
            environments.append(facts)
    rows = [{key: value(text) for key, text in line.items() if key not in KNOWN} for line in lines]
    return {MAIN: rows}, environments


def _json(path: Path) -> tuple[dict[str, list[Row]], list[Row]]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        raise ValueError(f"{path} is empty; {HINT}")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {HINT}") from None
    except RecursionError:
        raise ValueError(f"{path} is not JSON that a person would write: it is nested too deeply; {HINT}") from None
    if isinstance(found, list):
        return {MAIN: _rows(found)}, []
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds one {type(found).__name__} but no rows; {HINT}")
    known = found.pop("environment", None)
    tables = {key: _rows(found.pop(key)) for key in [MAIN] if isinstance(found.get(key), list)}
    listed = [key for key, item in found.items() if isinstance(item, list) and item and isinstance(item[0], dict)]
    tables |= {key: _rows(found.pop(key)) for key in listed}
    if found:
        tables[MAIN if not tables else "other"] = [found]
    return tables, [dict(known)] if isinstance(known, dict) else []


def _rows(items: Sequence[Any]) -> list[Row]:
    return [dict(item) if isinstance(item, dict) else {"value": item} for item in items]
