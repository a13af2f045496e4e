"""Which optimizer and step size a method trains a task with, so that a comparison compares methods at their own best.

A method states its optimizer, its momentum and a step size (`method.recipe`, thinwire/core/recipe.py). Step sizes
that were found for a task are here, and come before the stated ones.

Each was chosen by the lowest training loss of seed 0: for sign methods among 3e-4, 1e-3, 3e-3 and 1e-2 on digits and
among 1e-3 and 3e-3 on fashion, for EF-signSGD among 0.03, 0.05 and 0.1 on fashion, where float32 does best with 0.1.
Those of 1-bit Adam were not searched for. With AdamW, where it is asked for, float32 has the lowest loss on the
digits with 8e-3, among 5e-4, 1e-3, 2e-3, 4e-3, 8e-3 and 1.6e-2; on other tasks, and with Muon, nobody searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from thinwire.core.method import METHODS, Method
from thinwire.core.recipe import Recipe
from thinwire.core.registry import suggest
from thinwire.lab.tasks import Task
from thinwire.optim import Joined, OneBitAdam

MOMENTUM = Recipe().momentum  # of float32, and of studies that compare with it
END = 0.05  # the last rate as a fraction of the first; between them it falls on a straight line
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}
"""Those that may be asked for in place of what a method states, and how they are written."""
ADAM = 1e-3
ADAMW = {"digits": 8e-3}


@dataclass(frozen=True)
class Step:
    """The rate of the first step, the optimizer's momentum, and the optimizer, unless it is what a method states."""

    lr: float
    momentum: float = 0.0
    optimizer: str | None = None


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


def step_of(task: Task, method: str, optimizer: str | None = None, lr: float | None = None) -> Step:
    """What was found for the method and the task, or for the word before the colon, or what the method states.

    With another `optimizer` than the method states, that one's step size; `lr` comes before all of them.
    """
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer '{optimizer}'{suggest(optimizer, OPTIMIZERS)}")
    if lr is not None and not 0 < lr < math.inf:
        raise ValueError(f"lr={lr} does not step; write --lr {task.lr}")
    names, recipe = (method, method.partition(":")[0]), recipe_of(method)
    if optimizer not in (None, recipe.optimizer):
        if recipe.optimizer not in OPTIMIZERS:
            raise ValueError(f"{method} goes with {recipe.words} alone; leave --optimizer {optimizer} out")
        usual = {"sgd": task.lr, "adamw": ADAMW.get(task.name, ADAM)}.get(str(optimizer), ADAM)
        return Step(usual if lr is None else lr, recipe.momentum, optimizer)
    found = [FOUND[name, task.name] for name in names if (name, task.name) in FOUND]
    stated = found[0] if found else recipe.step(task.lr)
    return Step(stated if lr is None else lr, recipe.momentum)


def named(optimizer: str, method: str) -> str:
    """Both, where runs with several optimizers stand beside each other.

    >>> named("adamw", "int4"), named("sgd", "sgd")
    ('AdamW + int4', 'SGD + float32')
    """
    return f"{OPTIMIZERS.get(optimizer, optimizer)} + {'float32' if method == 'sgd' else method}"


def optimizer_of(method: Method, step: Step, parameters: Iterable[Tensor]) -> Optimizer:
    """The optimizer of the step, or the one that the method states."""
    return MAKERS[step.optimizer or method.recipe.optimizer](method, step, list(parameters))


def _sgd(method: Method, step: Step, parameters: list[Tensor]) -> Optimizer:
    nesterov = method.recipe.nesterov and step.momentum > 0
    return SGD(parameters, lr=step.lr, momentum=step.momentum, nesterov=nesterov)


def _adamw(_: Method, step: Step, parameters: list[Tensor]) -> Optimizer:
    return AdamW(parameters, lr=step.lr)


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
    "adamw": _adamw,
    "1-bit adam": _one_bit_adam,
    "muon": _muon,
}
"""By `Recipe.optimizer`, or by name."""


def decay(optimizer: Optimizer, step: Step, done: float) -> None:
    """Set the rate after the fraction `done` of the run, 0 to 1."""
    for group in optimizer.param_groups:
        group["lr"] = step.lr * (1 - (1 - END) * done)
