"""Beat: a process group that carries nothing. Sums end when every rank on this machine has asked for one.

DDP and its hooks are timed with it: they copy, cast and multiply as in training, at the same time on all ranks of the
machine, and wait for each other where they would, but no gradient is sent and none is added.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.futures import Future

PINGS = 20


@final
class Beat:
    """What `torch.distributed.all_reduce` needs of a group; `beats` counts the sums."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.beats = 0

    def size(self) -> int:
        """Of the group."""
        return dist.get_world_size(self._group)

    def rank(self) -> int:
        """In the group."""
        return dist.get_rank(self._group)

    def allreduce(self, tensors: Sequence[Tensor], options: object = None) -> Beaten:
        """Leave the tensors as they are, and wait for the others."""
        self.beats += 1
        return Beaten(tensors, self._sum())

    def seconds(self) -> float:
        """Of one beat, if everybody is on time."""
        times = []
        for _ in range(PINGS):
            start = time.perf_counter()
            self._sum().wait()
            times.append(time.perf_counter() - start)
        return median(times)

    def _sum(self) -> dist.Work:
        work: dist.Work | None = dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)
        assert work is not None
        return work


@final
class Beaten:
    """What is under way."""

    def __init__(self, tensors: Sequence[Tensor], work: dist.Work) -> None:
        self._tensors, self._work = list(tensors), work

    def get_future(self) -> Future[Any]:
        """Of the tensors."""
        return self._work.get_future().then(lambda _: self._tensors)

    def wait(self) -> bool:
        """Until everybody is there."""
        return bool(self._work.wait())
