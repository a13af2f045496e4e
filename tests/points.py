"""Points that train on the clock in local steps, and the same steps done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.sim import Problem, Simulation, simulate

D, WORKERS, LR = 6, 4, 0.1
TARGETS = torch.randn(WORKERS, D, generator=torch.Generator().manual_seed(0))
Make = Callable[[Iterable[nn.Parameter]], Optimizer]
SGDS: dict[str, Make] = {
    "plain": partial(SGD, lr=LR),
    "heavy ball": partial(SGD, lr=LR, momentum=0.9),
    "nesterov": partial(SGD, lr=LR, momentum=0.9, nesterov=True),
}


def loss_of(x: Tensor, rank: int, step: int) -> Tensor:
    return (x - TARGETS[rank] - 0.1 * step).square().sum() / 2


def grad_of(x: Tensor, rank: int, step: int) -> Tensor:
    return x - TARGETS[rank] - 0.1 * step


class Course(NamedTuple):
    """A run, the optimizers of its ranks, and what each rank's model was when a step began."""

    done: Simulation
    optimizers: list[Optimizer]
    before: list[dict[int, Tensor]]  # by rank and step

    @property
    def models(self) -> Tensor:
        return torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in self.done.models])

    @property
    def rounds(self) -> list[int]:
        """The steps after which all ranks had the same model."""
        steps = range(1, len(self.before[0]))
        return [t for t in steps if all(torch.equal(one[t], self.before[0][t]) for one in self.before)]

    @property
    def sent(self) -> float:
        return self.done.stats[0]["bytes_sent"]


def run(
    method: tw.Method,
    steps: int = 12,
    make: Make = SGDS["plain"],
    workers: int = WORKERS,
    same: bool = False,
    lr: Callable[[int], float] | None = None,
) -> Course:
    """Point models, whose targets differ between ranks unless they are the `same`; `lr` of a step, if it changes."""
    course = Course(None, [], [{} for _ in range(workers)])  # type: ignore[arg-type]

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        course.optimizers.append(make(parameters))
        return course.optimizers[-1]

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        assert isinstance(model, Point)
        course.before[rank][step] = model.x.detach().clone()
        if lr is not None:
            course.optimizers[rank].param_groups[0]["lr"] = lr(step)
        return loss_of(model.x, 0 if same else rank, step)

    problem = Problem(partial(Point, D), loss, optimizer)
    return course._replace(done=simulate(method, problem, workers, steps=steps, min_size=0))


def locally(anchor: Tensor, steps: range, lr: Callable[[int], float] = lambda _: LR) -> Tensor:
    """Where each rank is after these steps of plain SGD, one row per rank."""
    ends = []
    for rank in range(WORKERS):
        x = anchor.clone()
        for step in steps:
            x = x - lr(step) * grad_of(x, rank, step)
        ends.append(x)
    return torch.stack(ends)


def spread(rows: Tensor) -> float:
    return float((rows - rows[0]).abs().max())


def close(a: Tensor, b: Tensor) -> None:
    """Equal, to the rounding of float32."""
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
