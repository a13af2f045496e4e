"""Step sizes of the race: the same small grid for every contestant, and what it chose.

The grid runs on links as they are, since accuracy against steps does not depend on their rate, with a seed that is
not raced and at most half as many steps. The step size that reaches the target in the fewest steps is taken; if none
does, the one with the highest accuracy. The rows are in benchmarks/data/race-steps.csv, and a test compares this
table with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from thinwire.lab.records import Row
from thinwire.lab.step_sizes import Step, recipe_of

GRID = (0.0125, 0.025, 0.05, 0.1, 0.2)
SEED = 100  # of the grid
FAST = "fast network"  # a contestant whose communication is not counted
DDP = "ddp"  # in float32
STEPS: Mapping[str, Mapping[str, float]] = {
    "digits": {
        "ddp": 0.05,
        "ddp fp16": 0.05,
        "ddp powersgd-4": 0.05,
        "qsgd:bits=4": 0.05,
        "ecq-sgd": 0.05,
        "ef-signsgd:block=64": 0.05,
        "dgc:ratio=0.01": 0.1,
        "deepsqueeze": 0.05,
        "sparse-loco:every=5": 0.1,
        "local-sgd:every=5": 0.05,
        "torchft mean-5": 0.05,
        "torchft diloco-5": 0.025,
        "sparse-loco:every=10": 0.1,
        "qsparse-local-sgd:every=5,ratio=0.02": 0.05,
        "local-sgd:every=10": 0.1,
        "torchft mean-10": 0.1,
        "diloco:every=5,outer_lr=1.0,outer_momentum=0.0,compressor=(qsgd:bits=4)": 0.05,
        "torchft diloco-10": 0.1,
        "diloco:every=5": 0.025,
        "qsparse-local-sgd:every=10,ratio=0.02": 0.05,
        "qsparse-local-sgd:every=10,ratio=0.05": 0.1,
        "qsparse-local-sgd:every=5,ratio=0.01": 0.05,
        "qsparse-local-sgd:every=5,ratio=0.005": 0.1,
    },
    "fashion": {
        "ddp": 0.025,
        "ddp fp16": 0.025,
        "ddp powersgd-4": 0.025,
        "qsgd:bits=4": 0.025,
        "ecq-sgd": 0.0125,
        "ef-signsgd:block=64": 0.0125,
        "dgc:ratio=0.01": 0.05,
        "deepsqueeze": 0.0125,
        "torchft mean-10": 0.0125,
        "torchft diloco-10": 0.0125,
        "local-sgd:every=10": 0.0125,
        "sparse-loco:every=5": 0.05,
        "qsparse-local-sgd:every=5,ratio=0.02": 0.025,
        "qsparse-local-sgd:every=10,ratio=0.02": 0.0125,
        "qsparse-local-sgd:every=5,ratio=0.01": 0.025,
        "qsparse-local-sgd:every=5,ratio=0.005": 0.025,
    },
    "text": {
        "ddp": 0.1,
        "ddp fp16": 0.1,
        "ddp powersgd-4": 0.025,
        "qsgd:bits=4": 0.1,
        "ecq-sgd": 0.025,
        "ef-signsgd:block=64": 0.025,
        "dgc:ratio=0.01": 0.2,
        "deepsqueeze": 0.1,
        "torchft mean-10": 0.2,
        "torchft diloco-10": 0.1,
        "local-sgd:every=10": 0.2,
        "sparse-loco:every=5": 0.2,
        "qsparse-local-sgd:every=5,ratio=0.02": 0.2,
        "qsparse-local-sgd:every=10,ratio=0.02": 0.2,
        "qsparse-local-sgd:every=5,ratio=0.01": 0.2,
    },
}


def unrecorded(task: str, names: Sequence[str]) -> list[str]:
    """Those of the contestants that take the step size of DDP in float32, because none is known for them."""
    return [name for name in names if _known(task, name) is None]


def step_of(task: str, name: str, lr: float | None) -> Step:
    """The rate that is asked for, recorded, or stated by the method, or else that of DDP, with its momentum."""
    recipe = recipe_of(name)
    known = _known(task, name) if lr is None else lr
    step = recipe.step(STEPS[task][DDP]) if known is None else known
    if not 0 < step < math.inf:
        raise ValueError(f"lr={step} does not step; write --lr 0.05")
    return Step(step, recipe.momentum)


def _known(task: str, name: str) -> float | None:
    return STEPS[task].get(DDP if name == FAST else name, recipe_of(name).lr)  # FAST is the same training


def best(rows: Sequence[Row]) -> Row:
    """The best of one contestant's rows on one task: fewest steps to the target, then highest accuracy."""
    return min(rows, key=lambda row: (not row["reached"], row["steps"] if row["reached"] else 0, -row["accuracy"]))
