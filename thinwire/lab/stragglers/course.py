"""What is raced on when there are stragglers, and against what: one problem for the clock and for real processes.

The net has 85,002 parameters, so that a message takes 2.7 ms at 1 Gbit/s, and a step of a worker that is not slow
takes 50 ms. In real processes most of that is slept: four workers share the cores of one machine, and the gradient
itself is small. All use SGD without momentum, since asynchrony acts as momentum (Mitliagkas et al., 2016) and would
be tuned away with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.lab import problems, tasks
from thinwire.sim import Problem

TASK = "digits"
WIDTH = 256
SECONDS = 0.05  # of a step of a worker that is not slow
LATENCY = "100us"  # of the clock's network: what a small message takes between two hosts of the lab
TICK = 0.1  # seconds between tests
TESTS = 3  # whose mean has to reach the target
TARGET = 0.93
LIMIT = 12.0  # seconds of a run
LEARNT = 0.5  # accuracy of a run that has some hope


@final
@dataclass(frozen=True)
class Run:
    """One contestant with one seed; `whole` goes on to the limit when the target is reached.

    With `gives_up` a run that has learnt little ends before the limit: a climb to step sizes makes many of those.
    """

    stragglers: str
    method: str
    workers: int
    seed: int
    lr: float
    rate: str
    target: float = TARGET
    limit: float = LIMIT
    whole: bool = True
    gives_up: bool = False


def contestants(workers: int) -> tuple[str, ...]:
    """Every way to wait, from all to nobody; a tenth of the workers are spares."""
    return (
        "sgd",
        f"backup-workers:spares={max(1, workers // 10)}",
        *(f"ssp:staleness={s}" for s in (1, 4, 16)),
        "r2sp",
        "asgd",
        "dc-asgd",
        "ad-psgd",
    )


def check_workers(task: str, workers: int) -> None:
    """Raise a ValueError where the race cannot be run."""
    if task != TASK:
        raise ValueError(f"stragglers are raced on {TASK} alone; write --task {TASK}")
    known = tasks.get(task)
    if not 2 <= workers <= known.images // known.batch:
        most = known.images // known.batch
        raise ValueError(f"{workers} workers: 2 to {most} can race; write --hosts 4, or --clock 16")


def problem(run: Run) -> Problem:
    """The net, its batches by rank and step, and its test: accuracy and loss on all test images."""
    task = tasks.get(TASK)
    data = task.load(None)

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            return _net()

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return SGD(parameters, lr=run.lr)

    @torch.no_grad()
    def test(net: nn.Module) -> dict[str, float]:
        out = net(data.test_x)
        right = (out.argmax(1) == data.test_y).float().mean()
        return {"accuracy": float(right), "loss": float(task.loss(out, data.test_y))}

    base = problems.problem(run.workers, run.seed, TASK)
    return replace(base, model=model, optimizer=optimizer, seconds=SECONDS, test=test)


def tester(one: Problem) -> Callable[[Tensor], dict[str, float]]:
    """The test of a model that is given as one vector."""
    net, test = one.model(), one.test
    assert test is not None

    def tested(x: Tensor) -> dict[str, float]:
        nn.utils.vector_to_parameters(x, net.parameters())
        return test(net)

    return tested


def flat(net: nn.Module) -> Tensor:
    """A copy of the parameters."""
    return nn.utils.parameters_to_vector(net.parameters()).detach().clone()


def averaged(method: tw.Method) -> bool:
    """Whether the model that is tested is the mean of all workers' models; otherwise it is that of rank 0."""
    return method.sync.of.models


def _net() -> nn.Module:
    """Initial weights keep the scale of their input."""
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs in (64, WIDTH):
        layer = nn.Linear(inputs, WIDTH)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 10))
