"""Communication is a request, not a call: `await comm.all_gather(x)` yields a request and resumes with the answer.

There is no asyncio here. A driver is a small loop over `coroutine.send`: thinwire.comm.virtual runs N ranks in one
process; others run one rank over a real network. The same coroutine runs under each of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, final

from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Request(Generic[T]):
    """Base of what a rank may ask for."""

    def __await__(self) -> Generator[Request[Any], Any, T]:
        answer: T = yield self
        return answer


@final
@dataclass(frozen=True, eq=False)
class AllReduceRequest(Request[Tensor]):
    """The sum of everybody's `x`, added in rank order, or the largest."""

    x: Tensor
    op: Literal["sum", "max"] = "sum"


@final
@dataclass(frozen=True, eq=False)
class AllGatherRequest(Request[list[Tensor]]):
    """Everybody's `x`, by rank; sizes may differ unless `equal`, which saves a driver the asking."""

    x: Tensor
    equal: bool = False


@final
@dataclass(frozen=True, eq=False)
class AllToAllRequest(Request[list[Tensor]]):
    """`xs[j]` goes to rank j; the answer is what each rank sent here."""

    xs: Sequence[Tensor]


@final
@dataclass(frozen=True, eq=False)
class SwapRequest(Request[dict[int, Tensor]]):
    """`x` goes to every peer, and theirs come back."""

    x: Tensor
    peers: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class SendRequest(Request[None]):
    """`x` goes to rank `to`; done when it is received."""

    to: int
    x: Tensor


@final
@dataclass(frozen=True, eq=False)
class RecvRequest(Request[tuple[int, Tensor]]):
    """The next message from `source`, or from anybody: (rank, tensor)."""

    source: int | None


@final
@dataclass
class Traffic:
    """What one rank put on the wire, counted where it is sent."""

    bytes: int = 0
    messages: int = 0

    def count(self, *tensors: Tensor) -> None:
        """Add one message a tensor."""
        self.messages += len(tensors)
        self.bytes += sum(t.numel() * t.element_size() for t in tensors)


@final
@dataclass(frozen=True, eq=False)
class Comm:
    """One rank's view of the network. Every method returns an awaitable request."""

    rank: int
    size: int
    traffic: Traffic = field(default_factory=Traffic)

    def all_reduce(self, x: Tensor, op: Literal["sum", "max"] = "sum") -> AllReduceRequest:
        """Sum or maximum over ranks."""
        return AllReduceRequest(x, op)

    def all_gather(self, x: Tensor, *, equal: bool = False) -> AllGatherRequest:
        """Everybody's tensor; `equal` promises that all have the same size."""
        return AllGatherRequest(x, equal)

    def all_to_all(self, xs: Sequence[Tensor]) -> AllToAllRequest:
        """One tensor to each rank, one from each."""
        if len(xs) != self.size:
            raise ValueError(f"all_to_all takes one tensor a rank: {self.size}; got {len(xs)}")
        return AllToAllRequest(xs)

    def swap(self, x: Tensor, peers: Sequence[int]) -> SwapRequest:
        """The same tensor to each neighbour, one from each."""
        for peer in peers:
            self._check_peer(peer)
        return SwapRequest(x, tuple(peers))

    def send(self, to: int, x: Tensor) -> SendRequest:
        """One tensor to one rank."""
        self._check_peer(to)
        return SendRequest(to, x)

    def recv(self, source: int | None = None) -> RecvRequest:
        """One tensor from one rank, or from any."""
        if source is not None:
            self._check_peer(source)
        return RecvRequest(source)

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(f"rank {self.rank} of {self.size} cannot talk to rank {peer}")
