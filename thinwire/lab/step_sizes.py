"""Which optimizer and step size a method trains a task with, so that a comparison compares methods at their own best.

A method states its optimizer, its momentum and a step size (`method.recipe`, thinwire/core/recipe.py). Step sizes
that were found for a task are here, and come before the stated ones.

Each was chosen by the lowest training loss of seed 0: for sign methods among 3e-4, 1e-3, 3e-3 and 1e-2 on digits and
among 1e-3 and 3e-3 on fashion, for EF-signSGD among 0.03, 0.05 and 0.1 on fashion, where float32 does best with 0.1.
Those of 1-bit Adam were not searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from thinwire.core.method import METHODS, Method
from thinwire.core.recipe import Recipe
from thinwire.lab.tasks import Task
from thinwire.optim import Joined, OneBitAdam

MOMENTUM = Recipe().momentum  # of float32, and of studies that compare with it
END = 0.05  # the last rate as a fraction of the first; between them it falls on a straight line


@dataclass(frozen=True)
class Step:
    """The rate of the first step, and the optimizer's momentum."""

    lr: float
    momentum: float = 0.0


FOUND: dict[tuple[str, str], float] = {
    ("signsgd", "digits"): 1e-2,
    ("signsgd", "fashion"): 3e-3,
    ("majority-vote", "digits"): 3e-3,
    ("majority-vote", "fashion"): 1e-3,
    ("signum", "digits"): 3e-3,
    ("signum", "fashion"): 1e-3,
    ("one-bit-adam", "digits"): 1e-3,
    ("one-bit-adam", "fashion"): 1e-3,
    ("ef-signsgd", "fashion"): 0.05,
    ("ef-signsgd:block=64", "fashion"): 0.1,
    ("ef-signsgd:exchange=all-gather,block=64", "fashion"): 0.1,
}


def recipe_of(name: str) -> Recipe:
    """What a contestant wants: for a method what it states, for torch's DDP and its hooks what float32 has."""
    return METHODS.parse(name).recipe if name.partition(":")[0] in METHODS else Recipe()


def step_of(task: Task, method: str) -> Step:
    """What was found for the method and the task, or for the word before the colon, or what the method states."""
    names, recipe = (method, method.partition(":")[0]), recipe_of(method)
    found = [FOUND[name, task.name] for name in names if (name, task.name) in FOUND]
    return Step(found[0] if found else recipe.step(task.lr), recipe.momentum)


def optimizer_of(method: Method, step: Step, parameters: Iterable[Tensor]) -> Optimizer:
    """The optimizer that the method states, with that step."""
    return MAKERS[method.recipe.optimizer](method, step, list(parameters))


def _sgd(method: Method, step: Step, parameters: list[Tensor]) -> Optimizer:
    nesterov = method.recipe.nesterov and step.momentum > 0
    return SGD(parameters, lr=step.lr, momentum=step.momentum, nesterov=nesterov)


def _one_bit_adam(method: Method, step: Step, parameters: list[Tensor]) -> Optimizer:
    return OneBitAdam(parameters, lr=step.lr, freeze=max(1, method.sync.warmup))


def _muon(method: Method, step: Step, parameters: list[Tensor]) -> Optimizer:
    """Muon for matrices and AdamW for the rest; Muon's steps are made as long as AdamW's: one lr fits both."""
    try:
        from torch.optim import Muon  # noqa: PLC0415  (torch has it from 2.9 on)
    except ImportError as error:
        raise ValueError(
            f"{method.id} has Muon inside, which torch has from 2.9 on; this is {torch.__version__}: write "
            'pip install "torch>=2.9"'
        ) from error
    muon = partial(Muon, lr=step.lr, momentum=step.momentum, adjust_lr_fn="match_rms_adamw")
    adamw = partial(AdamW, lr=step.lr)
    matrices, rest = ([p for p in parameters if (p.ndim == 2) == flat] for flat in (True, False))
    return Joined(*(make(some) for make, some in ((muon, matrices), (adamw, rest)) if some))


MAKERS: dict[str, Callable[[Method, Step, list[Tensor]], Optimizer]] = {
    "sgd": _sgd,
    "1-bit adam": _one_bit_adam,
    "muon": _muon,
}
"""By `Recipe.optimizer`."""


def decay(optimizer: Optimizer, step: Step, done: float) -> None:
    """Set the rate after the fraction `done` of the run, 0 to 1."""
    for group in optimizer.param_groups:
        group["lr"] = step.lr * (1 - (1 - END) * done)
