"""Backend: what torch.distributed can do for the groups of a driver, and on which device.

gloo reads and writes host memory, takes a message that is shorter than the room for it, and lets several threads talk
on groups of their own. NCCL reads and writes GPU memory; sizes must agree; and its kernels wait for each other on the
GPU, so that all ranks must make the same calls in the same order: sends and receives of a round are one call, and the
lanes of a wire share its groups and take turns on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import AllreduceOptions

HOST = torch.device("cpu")
Posts = Sequence[tuple[int, Tensor]]  # global ranks, and what goes there or comes from there


class Backend(ABC):
    """One of torch's backends. Ranks are global ones."""

    name: ClassVar[str]
    """What `torch.distributed.new_group` calls it."""
    batched: ClassVar[bool] = False
    """Whether it wants all sends and receives of a round in one call, and each with its exact size."""
    in_turn: ClassVar[bool] = False
    """Whether lanes share one set of groups, on which they take turns."""

    def places(self, group: dist.ProcessGroup) -> tuple[int, list[int]]:
        """The place of this rank in the group, and the global ranks of all its members."""
        ranks = range(dist.get_world_size(group))
        return dist.get_rank(group), [dist.get_global_rank(group, rank) for rank in ranks]

    @abstractmethod
    def device(self, like: Tensor) -> torch.device:
        """The device where it can read and write a tensor like this one."""

    def holds(self, x: Tensor) -> bool:
        """Whether it can read and write `x` where it is."""
        return x.device == self.device(x)

    def bring(self, x: Tensor) -> Tensor:
        """A copy that it can read and write."""
        return x.to(self.device(x))

    def room(self, n: int, dtype: torch.dtype, like: Tensor) -> Tensor:
        """Memory to receive `n` elements in, for a request about tensors like this one."""
        return torch.empty(n, dtype=dtype, device=self.device(like))

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> None:
        """Reduce over the group, in place."""
        dist.all_reduce(x, op, group)

    def at_once(self, incoming: Posts, outgoing: Posts, group: dist.ProcessGroup) -> None:
        """Do all of these sends and receives together."""
        operations = [dist.P2POp(dist.irecv, x, peer, group) for peer, x in incoming]
        operations += [dist.P2POp(dist.isend, x, peer, group) for peer, x in outgoing]
        for started in dist.batch_isend_irecv(operations) if operations else []:
            started.wait()

    def send(self, x: Tensor, to: int, group: dist.ProcessGroup) -> None:
        """Send, and wait until it is received."""
        dist.send(x, to, group)

    def post(self, x: Tensor, to: int, group: dist.ProcessGroup) -> dist.Work | None:
        """Send, and do not wait."""
        return dist.isend(x, to, group)

    def finish(self, work: dist.Work) -> None:
        """Wait for a send or a receive."""
        work.wait()

    def recv(self, x: Tensor, source: int | None, group: dist.ProcessGroup) -> int:
        """Receive from `source`, or from anybody; returns the sender."""
        return dist.recv(x, source, group)


class Gloo(Backend):
    """Host memory."""

    name: ClassVar[str] = "gloo"

    def device(self, like: Tensor) -> torch.device:
        """The host."""
        return HOST

    def holds(self, x: Tensor) -> bool:
        """What is in host memory."""
        return x.is_cpu

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> None:
        """As `dist.all_reduce` does, which looks at more than a wire's own groups need."""
        self.finish(group.allreduce([x], _options(op)))


@cache
def _options(op: dist.ReduceOp.RedOpType) -> AllreduceOptions:
    """Made once for each operation: a group reads them."""
    options = AllreduceOptions()
    options.reduceOp = dist.ReduceOp(op)
    return options


class Nccl(Backend):
    """GPU memory."""

    name: ClassVar[str] = "nccl"
    batched: ClassVar[bool] = True
    in_turn: ClassVar[bool] = True

    def device(self, like: Tensor) -> torch.device:
        """The GPU where the tensor is, or the thread's own."""
        return like.device if like.is_cuda else torch.device("cuda", torch.cuda.current_device())

    def recv(self, x: Tensor, source: int | None, group: dist.ProcessGroup) -> int:
        """Receive from `source`."""
        if source is None:
            raise ValueError("NCCL cannot receive from anybody; write comm.recv(source), or use a gloo group")
        return super().recv(x, source, group)


BACKENDS: dict[str, type[Backend]] = {"gloo": Gloo, "nccl": Nccl}


def named(name: str) -> Backend:
    """The backend of this name; any other than NCCL is treated as gloo is."""
    return BACKENDS.get(name, Gloo)()


def name_of(group: dist.ProcessGroup) -> str:
    """What a group was made with."""
    return str(dist.get_backend(group))
