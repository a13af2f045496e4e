"""Which optimizer goes with which method. It is recorded, so that a comparison shows each method at its own best.

Most methods estimate the mean gradient and take the task's step size with momentum 0.9. Sign methods hand the
optimizer +1 and -1 whatever the gradient's size, so that a step moves every weight by lr, and 0.05 leaves none in
place. 1-bit Adam divides by the root of a second moment, with the same effect.

Each was chosen by the lowest training loss of seed 0. Sign methods: on digits among 3e-4, 1e-3, 3e-3 and 1e-2, on
fashion among 1e-3 and 3e-3. EF-signSGD on fashion: among 0.03, 0.05 and 0.1; float32 does best with 0.1.
Those of 1-bit Adam were not searched for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch.optim import SGD, Optimizer

from thinwire.core.method import Method
from thinwire.lab.tasks import Task
from thinwire.optim import OneBitAdam
from thinwire.sync.signals import Momentum

MOMENTUM = 0.9
END = 0.05  # the last rate as a fraction of the first; between them it falls on a straight line


@dataclass(frozen=True)
class Step:
    """The rate of the first step, and the optimizer's momentum."""

    lr: float
    momentum: float = 0.0


STEPS: dict[tuple[str, str], Step] = {
    ("signsgd", "digits"): Step(1e-2),
    ("signsgd", "fashion"): Step(3e-3),
    ("majority-vote", "digits"): Step(3e-3),
    ("majority-vote", "fashion"): Step(1e-3),
    ("signum", "digits"): Step(3e-3),
    ("signum", "fashion"): Step(1e-3),
    ("one-bit-adam", "digits"): Step(1e-3),
    ("one-bit-adam", "fashion"): Step(1e-3),
    ("ef-signsgd", "fashion"): Step(0.05, MOMENTUM),
    ("ef-signsgd:block=64", "fashion"): Step(0.1, MOMENTUM),
    ("ef-signsgd:exchange=all-gather,block=64", "fashion"): Step(0.1, MOMENTUM),
}


def step_of(task: Task, method: str) -> Step:
    """What is recorded for the method and the task, or for the word before the colon, otherwise the task's own."""
    names = (method, method.partition(":")[0])
    return next((STEPS[name, task.name] for name in names if (name, task.name) in STEPS), Step(task.lr, MOMENTUM))


def optimizer_of(method: Method, step: Step, parameters: Iterable[Tensor]) -> Optimizer:
    """SGD with that step, or the Adam whose momentum the method exchanges."""
    if isinstance(method.sync.of, Momentum):
        return OneBitAdam(parameters, lr=step.lr, freeze=max(1, method.sync.warmup))
    return SGD(parameters, lr=step.lr, momentum=step.momentum)


def decay(optimizer: Optimizer, step: Step, done: float) -> None:
    """Set the rate after the fraction `done` of the run, 0 to 1."""
    for group in optimizer.param_groups:
        group["lr"] = step.lr * (1 - (1 - END) * done)
