"""Loose: groups of gloo that torch.distributed does not know of, such as an engine for membership makes and replaces.

Ranks are those of the group itself. A connection that breaks or times out is an `EdgeError` in every operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import final

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllreduceOptions

from thinwire.comm.backend import Gloo
from thinwire.comm.processes import EdgeError


@final
class Loose(Gloo):
    """Calls of the group's own methods, each of which may take `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._limit = timedelta(seconds=timeout)

    def places(self, group: dist.ProcessGroup) -> tuple[int, list[int]]:
        """The group is all there is."""
        return group.rank(), list(range(group.size()))

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> None:
        """Reduce over the group, in place."""
        options = AllreduceOptions()
        options.reduceOp, options.timeout = dist.ReduceOp(op), self._limit
        with _edges():
            group.allreduce([x], options).wait(self._limit)

    def send(self, x: Tensor, to: int, group: dist.ProcessGroup) -> None:
        """Send, and wait until it is received."""
        with _edges((to,)):
            self.finish(group.send([x], to, 0))

    def post(self, x: Tensor, to: int, group: dist.ProcessGroup) -> dist.Work | None:
        """Send, and do not wait."""
        with _edges((to,)):
            return group.send([x], to, 0)

    def recv(self, x: Tensor, source: int | None, group: dist.ProcessGroup) -> int:
        """Receive from `source`."""
        if source is None:
            raise ValueError("a group that may change receives from a rank that is named; write comm.recv(source)")
        with _edges((source,)):
            self.finish(group.recv([x], source, 0))
        return source

    def finish(self, work: dist.Work) -> None:
        """Wait for a send or a receive; without a limit it would be the time in which the group was made."""
        work.wait(self._limit)


@contextmanager
def _edges(peers: tuple[int, ...] = ()) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        who = f"the edge to {peers[0]}" if peers else "an edge"
        raise EdgeError(f"{who} broke: {error}", peers) from error
