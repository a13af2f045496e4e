"""The table of steps with planned buckets and with results in the next forward pass, from step-planned.csv."""

from __future__ import annotations

from pathlib import Path

from thinwire.lab.markdown import table, where
from thinwire.lab.records import load

COMMAND = (
    "thinwire bench step --hosts 2 --rate 1gbit --planned --method sgd` with `--model resnet50 --batch 1`, `2` and "
    "`3`, `--model gpt2 --batch 448 --repeats 2 --budget 40`, and `--model gpt2 --computing 3500ms --repeats 1 "
    "--budget 30"
)
MODELS = {"25557032": "ResNet-50", "124439808": "GPT-2"}  # by their parameters
HEAD = (
    "model, batch",
    "computing alone",
    "DDP",
    "`sgd`",
    "planned",
    "MG-WFBP",
    "into forward",
    "off `sgd`",
    "commit",
)
SHOWN = ("no communication", "ddp", "sgd", "sgd, planned", "sgd, mg-wfbp", "sgd, into forward")
MACHINE = ("device", "cores", "torch", "hosts", "rate")


def page(file: Path) -> str:
    """A row per model and batch, as it was measured last where the last row was; `file` has other machines', too.

    A group counts whole, as one command wrote it.
    """
    rows = load(file)
    last = [row for row in rows if all(row[name] == rows[-1][name] for name in MACHINE)]
    groups: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in last:
        work = row["batch"] or f"asleep for {float(row['computing_ms']) / 1e3:.1f} s"
        known = groups.setdefault((row["params"], work), {})
        if any(one["commit"] != row["commit"] for one in known.values()):
            known.clear()
        known[row["method"]] = row
    body = []
    for (params, work), found in groups.items():
        times = {name: float(row["step_ms"]) for name, row in found.items()}
        off = f"{1 - times['sgd, into forward'] / times['sgd']:.1%}"
        commit = found["sgd"]["commit"]
        cells = (f"{times[name]:,.0f}" if name in times else "" for name in SHOWN)
        body.append([f"{MODELS[params]}, {work}", *cells, off, commit])
    shown = [found["sgd"] for found in groups.values()]
    dates, commits = (", ".join(dict.fromkeys(row[name] for row in shown)) for name in ("date", "commit"))
    return table(HEAD, body) + where({**rows[-1], "date": dates, "commit": commits}, COMMAND)
