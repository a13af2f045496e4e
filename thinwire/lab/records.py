"""Tidy rows: what was measured, with the machine, the versions and the commit beside every figure."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import thinwire
from thinwire.core.registry import number

Row = dict[str, Any]
FACTS = ("date", "device", "cores", "python", "torch", "thinwire", "commit")  # columns of every CSV file
TEXT = ("date", "device", "python", "torch", "thinwire", "commit")  # a commit may look like a number
MODULES = ("__main__.py", "app.py")  # the program's name under `python -m thinwire`, `-m thinwire.cli.app`, torchrun


def environment() -> Row:
    """Device, versions, commit and date, and the command."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "thinwire": thinwire.__version__,
        "commit": _commit(),
        "command": command(),
    }


def command() -> str:
    """The command that started this program, as for a shell, with only the name of the program's path."""
    program = Path(sys.argv[0]).name
    return shlex.join(["thinwire" if program in MODULES else program, *sys.argv[1:]])


def save(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows as CSV, each with the environment; what was in the file is replaced."""
    known = environment()
    facts = {name: known[name] for name in FACTS}
    full = [{**facts, **row} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(full[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(full)


def load(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, as text; raises ValueError if a line has more or fewer fields than the first."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = []
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"{path}, line {reader.line_num}: more or fewer fields than columns")
            rows.append(row)
    return rows


def read(path: Path) -> list[Row]:
    """The rows of a CSV file as they were before they became text."""
    rows = load(path)
    return [{name: text if name in TEXT else value(text) for name, text in row.items()} for row in rows]


def value(text: str) -> Any:
    """A field of a CSV file as it was before it became text.

    >>> value("4"), value("0.5"), value("True"), value(""), value("sgd")
    (4, 0.5, True, None, 'sgd')
    """
    words: dict[str, Any] = {"": None, "True": True, "False": False}
    return words[text] if text in words else number(text)


def quantiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The 20%, 50% and 80% quantiles."""
    q = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64))
    return float(q[0]), float(q[1]), float(q[2])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The commit, with a plus if the package has uncommitted changes."""
    here = Path(__file__).resolve().parents[1]
    try:
        head = _git(here, "rev-parse", "--short=8", "HEAD")
        return (head or "unknown") + ("+" if _git(here, "status", "--porcelain", ".") else "")
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, cwd=folder, check=False)
    return done.stdout.strip()
