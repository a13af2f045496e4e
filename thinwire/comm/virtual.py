"""The virtual driver for programs that have no time: N coroutines in one process, on a clock that stands still.

Collectives complete when all ranks ask for the same one; a send completes when it is received. When nobody can go on,
`DeadlockError` names every waiting rank. Bytes are counted as a real network would carry them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import INSTANT
from thinwire.core.comm import Comm, Traffic

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class Run(Generic[T]):
    """What N ranks returned, and what each of them sent."""

    results: list[T]
    traffic: list[Traffic]


def run(program: Callable[[Comm], Coroutine[Any, Any, T]], size: int) -> Run[T]:
    """Run `program(comm)` on `size` ranks, on a network that takes no time.

    >>> import torch
    >>> async def program(comm):
    ...     return (await comm.all_reduce(torch.tensor([float(comm.rank)]))).item()
    >>> run(program, 4).results
    [6.0, 6.0, 6.0, 6.0]
    """
    if size < 1:
        raise ValueError(f"run needs at least one rank; got size={size}")
    clock = VirtualClock(size, INSTANT)
    tasks = [clock.spawn(rank, program(clock.comm(rank))) for rank in range(size)]
    clock.run()
    return Run([task.result for task in tasks], clock.traffic)
