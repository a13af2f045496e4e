"""The tables of `adaptive` and `lags`, from the rows of benchmarks/adaptive.py and benchmarks/adaptive_hosts.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from thinwire.lab.markdown import table, where
from thinwire.lab.records import load

COMMAND = "python benchmarks/adaptive.py"
COLUMNS: dict[str, dict[str, tuple[str, str]]] = {  # by kind of row: column, heading, format
    "measured": {
        "tensors": ("tensors", "{:.0f}"),
        "largest": ("elements of the largest", "{:.0%}"),
        "possible": ("bits that could be saved", "{:.2f}"),
        "bytes": ("bytes", "{:.2f}"),
        "error": ("error", "{:.2f}"),
        "each": ("error of single gradients", "{:.2f}"),
    },
    "trained": {"bytes": ("bytes", "{:.2f}"), "loss": ("loss", "{:.2f}")},
    "step": {"bytes": ("bytes", "{:.2f}"), "error": ("error", "{:.2f}"), "step": ("step", "{:.2f}")},
    "lags": {"bytes": ("elements sent", "{:.2f}"), "step": ("step", "{:.2f}")},
}


def page(kind: str, data: Path) -> str:
    """The rows of one kind."""
    rows = [row for row in load(data / "adaptive.csv") if row["kind"] == kind]
    columns = COLUMNS[kind]
    body = [
        [row["case"], row["setting"], *(_cell(row, name, form) for name, (_, form) in columns.items())]
        for row in rows
    ]
    head = ["net", "setting", *(heading for heading, _ in columns.values())]
    return table(head, body, left=2) + where(rows[0], f"{COMMAND} {kind}")


def hosts(data: Path) -> str:
    """Steps between hosts, with computing alone beside."""
    rows = load(data / "adaptive-hosts.csv")
    alone = {(row["net"], row["rate"]): row["step_ms"] for row in rows if row["method"] == "none"}
    body = [
        [
            f"{row['net']}, {row['rate']}",
            f"`{row['method']}`",
            f"{float(alone[row['net'], row['rate']]):,.0f}",
            f"{float(row['step_ms']):,.0f}",
            f"{float(row['step_ms_p20']):,.0f} to {float(row['step_ms_p80']):,.0f}",
            f"{float(row['mb_sent']):.1f}",
            _cell(row, "over_uniform", "{:.2f}"),
        ]
        for row in sorted(rows, key=lambda row: (row["net"], row["rate"]))
        if row["method"] != "none"
    ]
    head = [
        "net",
        "setting",
        "computing, ms",
        "step, ms",
        "60% of the steps",
        "MB sent",
        "step over one setting for all",
    ]
    return table(head, body, left=2) + where(rows[0], "sudo python benchmarks/adaptive_hosts.py")


def _cell(row: Mapping[str, str], name: str, form: str) -> str:
    return form.format(float(row[name])) if row[name] else ""


TABLES: dict[str, Callable[[Path], str]] = {
    **{"lags" if kind == "lags" else f"adaptive-{kind}": partial(page, kind) for kind in COLUMNS},
    "adaptive-hosts": hosts,
}
