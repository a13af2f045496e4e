"""Tidy rows: what was measured, with the machine, the versions and the commit beside every figure."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import thinwire

Row = dict[str, Any]


def environment() -> Row:
    """Device, versions, commit and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "thinwire": thinwire.__version__,
        "commit": _commit(),
    }


def save(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows as CSV, each with the environment, in place of what was there."""
    facts = environment()
    full = [{**facts, **row} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(full[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(full)


def load(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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
    """The commit, with a plus when the package has changes that are not in it."""
    here = Path(__file__).resolve().parents[1]
    try:
        head = _git(here, "rev-parse", "--short=8", "HEAD")
        return (head or "unknown") + ("+" if _git(here, "status", "--porcelain", ".") else "")
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, cwd=folder, check=False)
    return done.stdout.strip()
