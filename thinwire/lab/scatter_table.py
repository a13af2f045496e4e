"""The table of reduce-scatters over shaped links, from the rows of benchmarks/reduce_scatter.py."""

from __future__ import annotations

from pathlib import Path

from thinwire.lab.markdown import table, where
from thinwire.lab.records import load

COMMAND = "python benchmarks/reduce_scatter.py"


def page(file: Path) -> str:
    """A row per contestant."""
    if not file.exists():
        return f"No rows yet: `{COMMAND}`, as root, records them."
    rows = load(file)
    body = [
        [
            _name(r["reduce_scatter"]),
            f"{float(r['ms']):.0f}",
            f"{float(r['speedup_over_gloo']):.1f}x",
            f"{int(r['tx_bytes']) / 1e6:.1f}",
            f"{float(r['relative_error']):.1e}",
            f"{int(r['residual_bytes']) / 1e6:.1f}",
        ]
        for r in rows
    ]
    head = ["reduce-scatter", "ms", "over gloo's", "MB sent", "error of a round", "MB of residuals"]
    return table(head, body) + where(rows[0], COMMAND)


def _name(contestant: str) -> str:
    """Ids as code, gloo's own in words."""
    return f"`{contestant}`" if contestant.startswith("reduce-scatter:") else contestant
