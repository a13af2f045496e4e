"""The lab's tasks as problems for `tw.simulate`: "digits", "fashion" and "text"."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from thinwire.lab import tasks
from thinwire.sim.problem import Problem

if TYPE_CHECKING:
    from torch.optim import Optimizer


def problem(workers: int, seed: int, name: str) -> Problem:
    """The model, the batches and the step size of a task; `seed` decides the first two."""
    task = tasks.get(name)
    task.check_workers(workers)
    data = task.load(task.locate(None))
    order = torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(seed))

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the lab's models draw their weights from it
            return task.model()

    def loss(net: nn.Module, rank: int, step: int) -> Tensor:
        start = (step * workers + rank) * task.batch % (len(order) - task.batch + 1)
        some = order[start : start + task.batch]
        return task.loss(net(data.train_x[some]), data.train_y[some])

    def test(net: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            right = net(data.test_x).argmax(1) == data.test_y
        return {"accuracy": float(right.float().mean())}

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return torch.optim.SGD(parameters, lr=task.lr, momentum=0.9)

    return Problem(model, loss, optimizer, test=test)


digits = partial(problem, name="digits")
fashion = partial(problem, name="fashion")
text = partial(problem, name="text")
