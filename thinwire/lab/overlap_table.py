"""The table of steps with planned buckets and with results in the next forward pass, from step-planned.csv."""

from __future__ import annotations

from pathlib import Path

from thinwire.lab.markdown import table, where
from thinwire.lab.records import load

COMMAND = (
    "thinwire bench step --hosts 2 --rate 1gbit --planned --method sgd` with `--model resnet50 --batch 1`, `2` and "
    "`3`, `--model gpt2 --batch 448`, and `--model gpt2 --computing 3500ms"
)
MODELS = {"25557032": "ResNet-50", "124439808": "GPT-2"}  # by their parameters
HEAD = ("model, batch", "computing alone", "DDP", "`sgd`", "planned", "into forward", "off `sgd`")
SHOWN = ("no communication", "ddp", "sgd", "sgd, planned", "sgd, into forward")


def page(file: Path) -> str:
    """A row per model and batch, of those that were measured last; `file` also has those of other machines."""
    rows = load(file)
    last = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for row in last:
        work = row["batch"] or f"asleep for {float(row['computing_ms']) / 1e3:.1f} s"
        groups.setdefault((row["params"], work), {})[row["method"]] = float(row["step_ms"])
    body = [
        [
            f"{MODELS[params]}, {work}",
            *(f"{times[name]:,.0f}" for name in SHOWN),
            f"{1 - times['sgd, into forward'] / times['sgd']:.0%}",
        ]
        for (params, work), times in groups.items()
    ]
    return table(HEAD, body) + where(last[0], COMMAND)
