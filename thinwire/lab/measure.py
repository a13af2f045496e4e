"""What a training run is measured by: its curves, its accuracy, and whether the replicas are equal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

POINTS = 200  # of a curve, at most
SPAN = 20


class Curve:
    """The loss of every step; the bytes and seconds of some, the last among them.

    Wherever a loss is shown, it is the mean of so many steps that ended there: a SPAN-th of the run.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.every = max(1, -(-steps // POINTS))
        self.span = max(1, -(-steps // SPAN))
        self.losses: list[float] = []
        self.marks: list[int] = []
        self.bytes_sent: list[float] = []
        self.seconds: list[float] = []
        self.begun = time.perf_counter()

    @property
    def due(self) -> bool:
        """Whether the last step is to be marked."""
        return len(self.losses) % self.every == 0 or len(self.losses) == self.steps

    @property
    def recent(self) -> float:
        """The loss of this rank alone."""
        last = self.losses[-self.span :]
        return sum(last) / len(last)

    def mark(self, bytes_sent: float) -> None:
        """Note the bytes and the time after the last step."""
        self.marks.append(len(self.losses))
        self.bytes_sent.append(bytes_sent)
        self.seconds.append(time.perf_counter() - self.begun)

    def mean(self) -> dict[str, list[float]]:
        """The curves: bytes and losses averaged over ranks, losses also over the steps of a span."""
        sums = [0.0, *accumulate(mean(self.losses))]
        spans = [(max(0, n - self.span), n) for n in self.marks]
        return {
            "step": [float(n) for n in self.marks],
            "loss": [(sums[stop] - sums[start]) / (stop - start) for start, stop in spans],
            "bytes_sent": mean(self.bytes_sent),
            "seconds": self.seconds,
        }


def mean(values: Sequence[float]) -> list[float]:
    """Each value averaged over the ranks."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return [float(v) for v in total / dist.get_world_size()]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of labels that are predicted correctly; each rank tests its part."""
    rank, world = dist.get_rank(), dist.get_world_size()
    right = torch.zeros((), dtype=torch.int64)
    for images, labels in zip(x[rank::world].split(512), y[rank::world].split(512), strict=True):
        right += (model(images).argmax(1) == labels).sum()
    dist.all_reduce(right)
    return int(right) / y.numel()


def replicas_equal(model: nn.Module) -> bool:
    """Whether every rank holds the parameters of rank 0, bit for bit."""
    mine = nn.utils.parameters_to_vector(model.parameters()).detach().view(torch.int32)
    first = mine.clone()
    dist.broadcast(first, src=0)
    same = torch.tensor(int(torch.equal(mine, first)))
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    return bool(same)
