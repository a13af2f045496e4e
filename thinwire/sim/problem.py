"""Problem: what simulated workers train, and how long that takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from thinwire.core.given import is_number, is_whole
from thinwire.core.registry import Registry

if TYPE_CHECKING:
    from torch.optim import Optimizer

FORWARD = 1 / 3  # of the time of a step; backward takes the rest


def _sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@final
@dataclass(frozen=True)
class Problem:
    """A model, the loss of a worker in a step, and how long computing a step takes a worker that is not slow.

    `test` makes figures of a model, such as its accuracy. `batch` is the mean batch, which methods may share out by
    speed (`Wire.batch`): computing a batch of another size takes in proportion.
    """

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int, int], Tensor]  # of (model, rank, step)
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = _sgd
    seconds: float = 0.1
    test: Callable[[nn.Module], dict[str, float]] | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module):
            raise TypeError(
                f"Problem(model={type(self.model).__name__}(...)): every worker has a model of its own; write a "
                "function that makes one, Problem(lambda: copy.deepcopy(model), loss)"
            )
        for name, value in (("model", self.model), ("loss", self.loss), ("optimizer", self.optimizer)):
            if not callable(value):
                raise TypeError(
                    f"Problem({name}={value!r}) is no function; write Problem(lambda: nn.Linear(4, 1), "
                    "lambda model, rank, step: model(x).sum(), lambda parameters: torch.optim.SGD(parameters, 0.1))"
                )
        if self.test is not None and not callable(self.test):
            raise TypeError(f'Problem(test={self.test!r}): write test=lambda model: {{"accuracy": ...}}')
        if self.batch is not None and not is_whole(self.batch, 1):
            raise ValueError(f"Problem(batch={self.batch!r}): write the mean batch, such as batch=32")
        if not is_number(self.seconds):
            raise ValueError(
                f"Problem(seconds={self.seconds!r}): write how long a step computes, such as seconds=0.1"
            )


PROBLEMS: Registry[Problem] = Registry("problem", "thinwire.problems")
"""Problems by name, as functions of (workers, seed); the lab's come through their entry points."""
