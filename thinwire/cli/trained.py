"""Rows of training runs as a table that an 80-column terminal holds, with the interval of each accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.cli.output import show
from thinwire.lab.records import Row
from thinwire.lab.report.words import bytes_of
from thinwire.lab.train import without_curves

TERMS = (
    "95%: what so many test images say of the accuracy. sent: by one worker. less: than a float32 ring all-reduce in "
    "every step. loss: mean of the last twentieth of the run, all workers."
)


def show_trained(rows: Sequence[Row], names: Sequence[str], title: str, *, as_json: bool) -> None:
    """One JSON document with the curves, or a line for each run."""
    if as_json:
        show(rows, as_json=True, title=title, columns={})
        return
    lines = [_line(row, name) for row, name in zip(map(without_curves, rows), names, strict=True)]
    shown = [name for name in lines[0] if any(line[name] != "" for line in lines)]
    show(lines, as_json=False, title=f"{title} {TERMS}", columns=dict.fromkeys(shown, ""), lean=True)


def _line(row: Row, name: str) -> dict[str, str]:
    low, high = (100 * row[f"accuracy_{end}"] for end in ("low", "high"))
    return {
        "method": name,
        "accuracy": f"{row['accuracy']:.1%}",
        "95%": f"{low:.1f}-{high:.1f}",
        "sent": bytes_of(row["bytes_sent"]),
        "less": f"{row['ratio']:.1f}x",
        "seconds": f"{row['seconds']:.1f}",
        "faster": f"{row['faster']:.1f}x" if row.get("faster") is not None else "",
        "loss": f"{row['loss']:.3f}",
        "replicas": "" if "faster" in row else "equal" if row["replicas_equal"] else "differ",
    }
