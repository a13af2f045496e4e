"""Problem: what simulated workers train, and how long that takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.optim import Optimizer

FORWARD = 1 / 3  # of the time of a step; backward takes the rest


def _sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@final
@dataclass(frozen=True)
class Problem:
    """A model, the loss of a worker in a step, and how long computing a step takes a worker that is not slow.

    `test` makes figures of a model, such as its accuracy.
    """

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int, int], Tensor]  # of (model, rank, step)
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = _sgd
    seconds: float = 0.1
    test: Callable[[nn.Module], dict[str, float]] | None = None


def named(name: str, workers: int, seed: int) -> Problem:
    """A task of the lab, such as "digits": its model, batches and step size."""
    from thinwire.lab import tasks  # noqa: PLC0415  (needs what the extra `lab` installs)

    task = tasks.get(name)
    task.check_workers(workers)
    data = task.load(task.locate(None))
    order = torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(seed))

    def model() -> nn.Module:
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
