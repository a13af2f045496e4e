"""Tables about what simulating costs: processor time by method and setting, and per message by workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thinwire.lab.markdown import table, where
from thinwire.lab.records import Row, read

BENCH = "thinwire bench simulate --workers 512 --setting usual --setting racks --setting stragglers --setting failure"
SCALING = "thinwire bench simulate --workers 64 --workers 512 --workers 4096 --steps 5"
HEADS = {"usual": "processor time", "racks": "with racks", "stragglers": "with stragglers", "failure": "with a death"}


def simulate(data: Path) -> str:
    """Seconds of processor time by method and setting."""
    rows = {(r["method"], r["setting"]): r for r in read(data / "simulate.csv")}
    usual = [r for (_, setting), r in rows.items() if setting == "usual"]
    body = [
        [
            f"`{r['method']}`",
            f"{r['messages']:,}",
            _each(r),
            *(_seconds(rows[r["method"], setting], r["steps"]) for setting in HEADS),
        ]
        for r in usual
    ]
    return table(["method", "messages", "per message", *HEADS.values()], body) + where(usual[0], BENCH)


def scaling(data: Path) -> str:
    """The cost of a message by the number of workers."""
    rows = {(r["method"], r["workers"]): r for r in read(data / "simulate-scaling.csv")}
    workers = sorted({n for _, n in rows})
    body = [
        [f"`{method}`", *(_each(rows[method, n]) for n in workers)] for method in dict.fromkeys(m for m, _ in rows)
    ]
    head = ["per message", *(f"{n} workers" for n in workers)]
    return table(head, body) + where(next(iter(rows.values())), SCALING)


def _each(row: Row) -> str:
    ns = row["ns_per_message"]
    return f"{ns / 1000:.1f} us" if ns >= 1000 else f"{ns:.2g} ns"


def _seconds(row: Row, steps: int) -> str:
    """With the steps where they are fewer: a death has ended training."""
    return f"{row['cpu_s']:.1f} s" + (f", {row['steps']} steps" if row["steps"] < steps else "")


TABLES: dict[str, Callable[[Path], str]] = {"simulate": simulate, "simulate-scaling": scaling}
