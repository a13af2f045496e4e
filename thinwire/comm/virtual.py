"""The virtual driver in lock step: N coroutines in one process; requests are answered when all partners have asked.

Collectives complete when all ranks ask for the same one; a send completes when its receive is posted. When nobody
can go on, `DeadlockError` names every waiting rank. Bytes are counted as a real network would carry them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from thinwire.core.comm import (
    AllGatherRequest,
    AllReduceRequest,
    AllToAllRequest,
    Comm,
    RecvRequest,
    Request,
    SendRequest,
    SwapRequest,
    Traffic,
    count,
)
from thinwire.core.errors import DeadlockError

T = TypeVar("T")
COLLECTIVES = (AllReduceRequest, AllGatherRequest, AllToAllRequest)


@final
@dataclass(frozen=True, eq=False)
class Run(Generic[T]):
    """What N ranks returned, and what each of them sent."""

    results: list[T]
    traffic: list[Traffic]


def run(program: Callable[[Comm], Coroutine[Any, Any, T]], size: int) -> Run[T]:
    """Run `program(comm)` on `size` ranks, in lock step.

    >>> import torch
    >>> async def program(comm):
    ...     return (await comm.all_reduce(torch.tensor([float(comm.rank)]))).item()
    >>> run(program, 4).results
    [6.0, 6.0, 6.0, 6.0]
    """
    if size < 1:
        raise ValueError(f"run needs at least one rank; got size={size}")
    comms = [Comm(rank, size) for rank in range(size)]
    driver = _LockStep([program(comm) for comm in comms], comms)
    return Run(driver.finish(), [comm.traffic for comm in comms])


@dataclass
class _LockStep(Generic[T]):
    coroutines: list[Coroutine[Any, Any, T]]
    comms: list[Comm]
    waiting: dict[int, Request[Any]] = field(default_factory=dict)
    results: dict[int, T] = field(default_factory=dict)
    mail: dict[tuple[int, int], deque[Tensor]] = field(default_factory=dict)  # swaps under way, by (from, to)

    def finish(self) -> list[T]:
        try:
            for rank in range(len(self.comms)):
                self._advance(rank, None)
            while self.waiting:
                if not (self._collective() or self._point_to_point()):
                    raise DeadlockError(self._describe())
        finally:
            for coroutine in self.coroutines:
                coroutine.close()
        return [self.results[rank] for rank in range(len(self.comms))]

    def _advance(self, rank: int, answer: Any) -> None:
        """Let a rank run until its next request or its end."""
        self.waiting.pop(rank, None)
        try:
            request = self.coroutines[rank].send(answer)
        except StopIteration as done:
            self.results[rank] = done.value
            return
        except Exception as error:
            error.add_note(f"raised on virtual rank {rank}")
            raise
        if not isinstance(request, Request):
            raise TypeError(
                f"rank {rank} awaited {request!r}; under a thinwire driver only requests of its Comm can be awaited "
                "(there is no asyncio loop here)"
            )
        self.waiting[rank] = request
        if isinstance(request, SwapRequest):
            for peer in request.peers:
                self.mail.setdefault((rank, request.ranks[peer]), deque()).append(request.x.clone())
            self._count(rank, request)

    def _count(self, rank: int, request: Request[Any]) -> None:
        count(self.comms[rank].traffic, request.ranks.index(rank), request)

    def _collective(self) -> bool:
        """Answer one collective whose group is complete."""
        for rank, first in self.waiting.items():
            members = first.ranks
            if rank != members[0] or not isinstance(first, COLLECTIVES):
                continue
            requests = [self.waiting.get(member) for member in members]
            ready: list[Request[Any]] = [
                r for r in requests if r is not None and type(r) is type(first) and r.ranks == members
            ]
            if len(ready) < len(members):
                continue
            answers = _answer_collective(ready)
            if answers is None:
                continue
            for member, request, answer in zip(members, ready, answers, strict=True):
                self._count(member, request)
                self._advance(member, answer)
            return True
        return False

    def _point_to_point(self) -> bool:
        for rank, request in list(self.waiting.items()):
            if isinstance(request, SwapRequest):
                boxes = {peer: self.mail.get((request.ranks[peer], rank)) for peer in request.sources}
                if all(boxes.values()):
                    arrived = {peer: box.popleft() for peer, box in boxes.items() if box}
                    if request.equal:
                        _check_sizes(
                            "swap", (request.x.numel(),) * len(arrived), tuple(map(Tensor.numel, arrived.values()))
                        )
                    self._advance(rank, arrived)
                    return True
            elif isinstance(request, SendRequest):
                to, me = request.ranks[request.to], request.ranks.index(rank)
                receiver = self.waiting.get(to)
                if (
                    isinstance(receiver, RecvRequest)
                    and receiver.ranks == request.ranks
                    and receiver.source in (None, me)
                ):
                    self._count(rank, request)
                    message = request.x.clone()
                    self._advance(to, (me, message))
                    self._advance(rank, None)
                    return True
        return False

    def _describe(self) -> str:
        lines = [f"rank {rank} waits in {_describe(request)}" for rank, request in sorted(self.waiting.items())]
        lines += [f"rank {rank} has returned" for rank in sorted(self.results)]
        return "deadlock: " + "; ".join(lines)


def _answer_collective(requests: list[Request[Any]]) -> list[Any] | None:
    """One answer per rank when all ask for the same collective; None when they do not."""
    reduces = [r for r in requests if isinstance(r, AllReduceRequest)]
    gathers = [r for r in requests if isinstance(r, AllGatherRequest)]
    alls = [r for r in requests if isinstance(r, AllToAllRequest)]
    n = len(requests)
    if len(reduces) == n:
        shapes = {(tuple(r.x.shape), r.x.dtype, r.op) for r in reduces}
        if len(shapes) > 1:
            raise ValueError(f"all_reduce of tensors that differ between ranks: {sorted(map(str, shapes))}")
        total = reduces[0].x.clone()
        for r in reduces[1:]:
            total = torch.maximum(total, r.x) if r.op == "max" else total + r.x
        return [total.clone() for _ in requests]
    if len(gathers) == n:
        sizes = tuple(r.x.numel() for r in gathers)
        for gather in gathers:
            _check_sizes("all_gather", gather.sizes, sizes, gather.exact)
        return [[r.x.clone() for r in gathers] for _ in requests]
    if len(alls) == n:
        for rank, every in enumerate(alls):
            _check_sizes("all_to_all", every.sizes, tuple(o.xs[rank].numel() for o in alls), every.exact)
        return [[r.xs[rank].clone() for r in alls] for rank in range(n)]
    return None


def _check_sizes(what: str, promised: tuple[int, ...] | None, sizes: tuple[int, ...], exact: bool = True) -> None:
    if promised is None or promised == sizes:
        return
    if exact or any(size > most for size, most in zip(sizes, promised, strict=True)):
        raise ValueError(f"{what} was promised sizes {list(promised)}; the tensors have {list(sizes)}")


def _describe(request: Request[Any]) -> str:
    if isinstance(request, SwapRequest):
        return f"swap with {sorted({*request.peers, *request.sources})}"
    if isinstance(request, SendRequest):
        return f"send to {request.to}"
    if isinstance(request, RecvRequest):
        return "recv from any" if request.source is None else f"recv from {request.source}"
    return {AllReduceRequest: "all_reduce", AllGatherRequest: "all_gather", AllToAllRequest: "all_to_all"}[
        type(request)
    ]
