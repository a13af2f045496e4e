"""A network that buffers nothing: a message goes over when its sender and its receiver are both there.

This is the strictest that a driver of real processes may be, on virtual ranks: a swap ends when all it sends is
received and all it waits for has come. Where sizes are not promised they are swapped first, as
`thinwire.comm.processes` does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from thinwire.core.comm import Comm, SwapRequest
from thinwire.core.errors import DeadlockError

T = TypeVar("T")


@dataclass
class _Open:
    """A swap under way: who is still to be sent to and heard from, in this phase and in those after it."""

    request: SwapRequest
    phases: int
    to: set[int] = field(default_factory=set)
    of: set[int] = field(default_factory=set)
    got: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.next_phase()

    def next_phase(self) -> None:
        self.phases -= 1
        self.to, self.of = set(self.request.peers), set(self.request.sources)


def meet(program: Callable[[Comm], Coroutine[Any, Any, T]], size: int) -> list[T]:
    """What `program(comm)` returns on each rank; DeadlockError where nobody can go on. Knows swaps only."""
    coroutines = [program(Comm(rank, size)) for rank in range(size)]
    waiting: dict[int, _Open] = {}
    results: dict[int, T] = {}

    def advance(rank: int, answer: Any) -> None:
        waiting.pop(rank, None)
        try:
            request = coroutines[rank].send(answer)
        except StopIteration as done:
            results[rank] = done.value
            return
        assert isinstance(request, SwapRequest)
        waiting[rank] = _Open(request, 1 if request.equal else 2)

    for rank in range(size):
        advance(rank, None)
    while waiting:
        moved = _carry(waiting)
        for rank, swap in list(waiting.items()):
            if not swap.to and not swap.of:
                moved = True
                if swap.phases:
                    swap.next_phase()
                else:
                    advance(rank, swap.got)
        if not moved:
            for coroutine in coroutines:
                coroutine.close()
            raise DeadlockError(f"ranks {sorted(waiting)} wait, {sorted(results)} have returned")
    return [results[rank] for rank in range(size)]


def _carry(waiting: dict[int, _Open]) -> bool:
    """Deliver everything whose two ends are there; returns whether there was any."""
    moved = False
    for rank, swap in waiting.items():
        for peer in sorted(swap.to):
            other = waiting.get(peer)
            if other is not None and rank in other.of and other.phases == swap.phases:
                if not swap.phases:
                    if other.request.equal:
                        assert other.request.x.numel() == swap.request.x.numel()  # what the receiver expects
                    other.got[rank] = swap.request.x.clone()
                swap.to.remove(peer)
                other.of.remove(rank)
                moved = True
    return moved
