"""The demo: methods beside float32 over a slow link, each with SGD and with AdamW where it suits.

Where hosts of a network lab can be made, their uplinks have the rate, and seconds are measured. Elsewhere ranks train
without a link, and `forecast` puts the seconds of the virtual clock in the place of theirs: a step takes as long as
in the quickest of the runs, and what the method took to encode and decode; messages take their time on the link.
What the clock cannot foresee from shapes, such as what servers send, takes as long as its bytes at the link's rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import thinwire as tw
from thinwire.core.method import METHODS
from thinwire.core.rates import bits_per_second
from thinwire.lab import tasks
from thinwire.lab.intervals import differ
from thinwire.lab.records import Row
from thinwire.lab.step_sizes import OPTIMIZERS
from thinwire.lab.train import TIMED, Job
from thinwire.sim import Load, Weight, foresee

RATE, LATENCY = "50mbit", "100us"  # the latency is that of hosts of the lab, which are bridged in one kernel
EPOCHS = 6  # with float32 at this rate and the others, a minute and a half
FLOAT32 = "sgd"  # the method that sends gradients as they are
CONTESTANTS = {
    "sgd": (FLOAT32, "bf16", "int4", "ecq-sgd", "local-sgd"),
    "adamw": (FLOAT32, "bf16", "int4"),
}
"""By optimizer. With AdamW methods that compress harder than `int4` end elsewhere (docs/choosing.md)."""
FORESEEN = 20  # steps on the clock, or two rounds


def jobs(
    task: str,
    methods: Sequence[str],
    optimizers: Sequence[str],
    *,
    lr: float | None = None,
    seed: int = 0,
    epochs: int | None = None,
    data: Path | None = None,
) -> list[Job]:
    """The methods that are named with each optimizer, or without one as they state; otherwise the contestants."""
    if methods:
        pairs = [(name, method) for name in optimizers or (None,) for method in methods]
    else:
        known = {name: CONTESTANTS.get(name, CONTESTANTS["adamw"]) for name in optimizers or CONTESTANTS}
        pairs = [(name, method) for name, some in known.items() for method in some]
    epochs = EPOCHS if epochs is None and task == "digits" else epochs
    return [Job(task, method, seed, epochs, data, name, lr).located() for name, method in dict.fromkeys(pairs)]


def forecast(rows: Sequence[Row], rate: str) -> list[Row]:
    """The rows as they would be over uplinks of this rate, by the virtual clock."""
    quickest = min(row["seconds"] / row["steps"] for row in rows)
    return [_foreseen(row, rate, quickest) for row in rows]


def _foreseen(row: Row, rate: str, quickest: float) -> Row:
    method, here = METHODS.parse(row["method"]), quickest + (row["encode_s"] + row["decode_s"]) / row["steps"]
    weights = [
        Weight(name, tuple(p.shape), p.numel()) for name, p in tasks.get(row["task"]).model().named_parameters()
    ]
    steps = min(row["steps"], max(FORESEEN, 2 * method.sync.every))
    network = tw.Network(rate, LATENCY)
    try:
        step = foresee(method, Load.of(weights, here), row["workers"], steps=steps, network=network).step
    except ValueError:  # its messages depend on numbers
        step = here + 8 * row["bytes_sent"] / row["steps"] / bits_per_second(rate)
    curves = {**row["curves"], "seconds": [step * n for n in row["curves"]["step"]]}
    seconds = {"seconds": step * row["steps"], "timing": "forecast", "seconds_without_link": row["seconds"]}
    kept = {name: value for name, value in row.items() if name not in TIMED}  # which are those without a link
    return {**kept, **seconds, "rate": rate, "curves": curves}


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows with how many times sooner each has ended than float32 with the same optimizer, where that ran."""
    base = {row["optimizer"]: row["seconds"] for row in rows if row["method"] == FLOAT32}
    faster = [base[row["optimizer"]] / row["seconds"] if row["optimizer"] in base else None for row in rows]
    return [{**row, "faster": times} for row, times in zip(rows, faster, strict=True)]


def verdict(rows: Sequence[Row]) -> list[str]:
    """A sentence for each optimizer: the fastest of those whose accuracy the test cannot tell from float32's."""
    made = []
    for base in (row for row in rows if row["method"] == FLOAT32):
        others = [row for row in rows if row["optimizer"] == base["optimizer"] and row is not base]
        alike = [row for row in others if not differ(row["accuracy"], base["accuracy"], base["tested"])]
        if not alike:
            continue
        best = min(alike, key=lambda row: row["seconds"])
        if best["seconds"] < base["seconds"]:
            name = OPTIMIZERS.get(base["optimizer"], base["optimizer"])
            ends = [f"{row['seconds']:.1f} s and ended at {row['accuracy']:.1%}" for row in (best, base)]
            made.append(
                f"{name}: {best['method']} took {ends[0]}, float32 {ends[1]}; {base['tested']:,} test images cannot "
                "tell these accuracies apart."
            )
    return made
