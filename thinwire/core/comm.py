"""Communication is a request, not a call: `await comm.all_gather(x)` yields a request and resumes with the answer.

There is no asyncio here. A driver is a small loop over `coroutine.send`: thinwire.comm.clock runs N ranks in one
process, on virtual time; others run one rank over a real network. The same coroutine runs under each of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from thinwire.core.rooms import Rooms

if TYPE_CHECKING:
    from thinwire.core.verdicts import Verdicts

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Request(Generic[T]):
    """Base of what a rank may ask for. `ranks` are those that it concerns, as numbered in the whole world.

    On the clock, requests of different channels do not meet; in real processes each channel has groups of its own.
    """

    ranks: tuple[int, ...]
    channel: int = field(default=0, kw_only=True)

    def __await__(self) -> Generator[Request[Any], Any, T]:
        answer: T = yield self
        return answer


class Wait(ABC):
    """What a coroutine may await in a real process besides requests. `answer` blocks its thread until it is there."""

    @abstractmethod
    def answer(self) -> Any:
        """What the coroutine goes on with."""


@final
@dataclass(frozen=True, eq=False)
class AllReduceRequest(Request[Tensor]):
    """The sum or the maximum of everybody's `x`. A driver may write it to `x` itself."""

    x: Tensor
    op: Literal["sum", "max"] = "sum"


@final
@dataclass(frozen=True, eq=False)
class AllGatherRequest(Request[list[Tensor]]):
    """Everybody's `x`, by rank. `sizes` says how many elements each has, so that a driver need not ask.

    Sizes that are not `exact` are upper bounds, and anything may follow the elements that arrived.
    """

    x: Tensor
    sizes: tuple[int, ...] | None = None
    exact: bool = True


@final
@dataclass(frozen=True, eq=False)
class AllToAllRequest(Request[list[Tensor]]):
    """`xs[j]` goes to rank j; the answer is what each rank sent here. `sizes` says how much comes from each.

    Sizes that are not `exact` are upper bounds, and anything may follow the elements that arrived.
    """

    xs: Sequence[Tensor]
    sizes: tuple[int, ...] | None = None
    exact: bool = True


@final
@dataclass(frozen=True, eq=False)
class SwapRequest(Request[dict[int, Tensor]]):
    """`x` goes to every peer, and what the sources sent comes back. `equal` promises that all have the same size."""

    x: Tensor
    peers: tuple[int, ...]
    sources: tuple[int, ...]
    equal: bool = False


@final
@dataclass(frozen=True, eq=False)
class SendRequest(Request[None]):
    """`x` goes to rank `to`; the request is done when it is received."""

    to: int
    x: Tensor


@final
@dataclass(frozen=True, eq=False)
class PostRequest(Request[None]):
    """`x` goes to rank `to`; the request is done at once, and a receive takes the message when it has arrived."""

    to: int
    x: Tensor


@final
@dataclass(frozen=True, eq=False)
class RecvRequest(Request[tuple[int, Tensor]]):
    """The next message from `source`, or from anybody: (rank, tensor)."""

    source: int | None


@final
@dataclass(frozen=True, eq=False)
class NowRequest(Request[float]):
    """The time in seconds, from a start that the driver chooses."""


@final
@dataclass(frozen=True, eq=False)
class SleepRequest(Request[None]):
    """Nothing, `seconds` later."""

    seconds: float


@final
@dataclass(frozen=True, eq=False)
class ComputeRequest(Request[None]):
    """The time of a computation that takes `seconds` on a worker that nothing disturbs.

    On the clock it passes, and stragglers take longer. In real processes the request is done at once, since what is
    computed there takes its own time.
    """

    seconds: float


@final
@dataclass
class Traffic:
    """What one rank put on the wire, counted where it is sent."""

    bytes: int = 0
    messages: int = 0

    def count(self, *tensors: Tensor) -> None:
        """Add one message per tensor."""
        self.messages += len(tensors)
        self.bytes += sum([t.nbytes for t in tensors])


def to_tensor(data: bytes) -> Tensor:
    """Bytes as a request carries them."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def to_bytes(data: Tensor) -> bytes:
    """The inverse of `to_tensor`."""
    return data.cpu().numpy().tobytes()


def count(traffic: Traffic, rank: int, request: Request[Any]) -> None:
    """Add what `request` makes `rank` (of its group) send, as a network carries it.

    An all-gather sends n-1 copies, an all-reduce 2 (n-1)/n of the tensor (ring), a swap one copy per peer.
    """
    n = len(request.ranks)
    if isinstance(request, AllReduceRequest):
        traffic.messages += 2 * (n - 1)
        traffic.bytes += 2 * (n - 1) * request.x.nbytes // n
    elif isinstance(request, AllGatherRequest):
        _add(traffic, n - 1, request.x)
    elif isinstance(request, AllToAllRequest):
        traffic.count(*(x for to, x in enumerate(request.xs) if to != rank))
    elif isinstance(request, SwapRequest):
        _add(traffic, len(request.peers), request.x)
    elif isinstance(request, SendRequest | PostRequest):
        _add(traffic, 1, request.x)


def _add(traffic: Traffic, copies: int, x: Tensor) -> None:
    traffic.messages += copies
    traffic.bytes += copies * x.nbytes


@final
@dataclass(frozen=True, eq=False)
class Comm:
    """One rank's view of the network, or of a part of it. Every method returns an awaitable request."""

    rank: int
    size: int
    traffic: Traffic = field(default_factory=Traffic)
    ranks: tuple[int, ...] = ()  # of this view, as numbered in the whole world; empty for everybody
    gone: set[int] = field(default_factory=set)  # neighbours that a driver has given up on, if it may
    channel: int = 0  # on the clock, only requests of the same channel meet
    heads: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    """The first bytes of messages that lie on a GPU, by tensor, where the host knows them: they came through its
    memory, or it wrote them. Reading them from the GPU would be a wait."""
    due: list[Verdicts] = field(default_factory=list)
    """Checks that a driver looks at before it sends anything, if it waits for the GPU then anyway: what was made of a
    damaged payload is not sent on."""
    rooms: Rooms = field(default_factory=Rooms)
    """Memory for what an exchange makes to send."""

    def __post_init__(self) -> None:
        if not self.ranks:
            object.__setattr__(self, "ranks", tuple(range(self.size)))

    def sub(self, members: Sequence[int]) -> Comm:
        """The view of some of the ranks, this one among them; they are numbered in the order given."""
        if self.rank not in members or any(not 0 <= m < self.size for m in members):
            raise ValueError(f"rank {self.rank} of {self.size} cannot be part of the group {list(members)}")
        ranks = tuple(self.ranks[m] for m in members)
        rank = list(members).index(self.rank)
        return Comm(
            rank,
            len(ranks),
            self.traffic,
            ranks,
            channel=self.channel,
            heads=self.heads,
            due=self.due,
            rooms=self.rooms,
        )

    def all_reduce(self, x: Tensor, op: Literal["sum", "max"] = "sum") -> AllReduceRequest:
        """Sum or maximum over ranks; `x` may be overwritten."""
        return AllReduceRequest(self.ranks, x, op, channel=self.channel)

    def all_gather(
        self, x: Tensor, *, equal: bool = False, sizes: Sequence[int] | None = None, exact: bool = True
    ) -> AllGatherRequest:
        """Everybody's tensor; `equal` or `sizes` promise how many elements each has, exactly or at most."""
        known = (x.numel(),) * self.size if equal else sizes
        known = None if known is None else tuple(known)
        return AllGatherRequest(self.ranks, x, known, exact, channel=self.channel)

    def all_to_all(
        self, xs: Sequence[Tensor], *, sizes: Sequence[int] | None = None, exact: bool = True
    ) -> AllToAllRequest:
        """One tensor to each rank, one from each; `sizes` promises how many elements arrive, exactly or at most."""
        if len(xs) != self.size:
            raise ValueError(f"all_to_all takes one tensor per rank: {self.size}; got {len(xs)}")
        known = None if sizes is None else tuple(sizes)
        return AllToAllRequest(self.ranks, xs, known, exact, channel=self.channel)

    def swap(
        self, x: Tensor, peers: Sequence[int], *, sources: Sequence[int] | None = None, equal: bool = False
    ) -> SwapRequest:
        """The same tensor to each peer, one from each source; the sources are the peers unless others are given.

        A driver that may give up on neighbours leaves them out of the answer and adds them to `gone`.
        """
        sources = peers if sources is None else sources
        for peer in {*peers, *sources}:
            self._check_peer(peer)
        return SwapRequest(self.ranks, x, tuple(peers), tuple(sources), equal, channel=self.channel)

    def send(self, to: int, x: Tensor) -> SendRequest:
        """One tensor to one rank; done when it is received."""
        self._check_peer(to)
        return SendRequest(self.ranks, to, x, channel=self.channel)

    def post(self, to: int, x: Tensor) -> PostRequest:
        """One tensor to one rank, buffered: done at once, and `x` may change afterwards.

        What one rank posts and sends to another arrives in order, and is taken by `recv`.
        """
        self._check_peer(to)
        return PostRequest(self.ranks, to, x, channel=self.channel)

    def recv(self, source: int | None = None) -> RecvRequest:
        """One tensor from one rank, or from any, in order of arrival."""
        if source is not None:
            self._check_peer(source)
        return RecvRequest(self.ranks, source, channel=self.channel)

    def now(self) -> NowRequest:
        """The time in seconds: virtual time on the clock, time.perf_counter in real processes."""
        return NowRequest(self.ranks)

    def sleep(self, seconds: float) -> SleepRequest:
        """Wait."""
        _check_seconds("sleep", seconds)
        return SleepRequest(self.ranks, seconds)

    def compute(self, seconds: float) -> ComputeRequest:
        """Let the time of a computation pass on the clock; in real processes this returns at once."""
        _check_seconds("compute", seconds)
        return ComputeRequest(self.ranks, seconds)

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(f"rank {self.rank} of {self.size} cannot talk to rank {peer}")


def _check_seconds(what: str, seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{what}({seconds!r}): write a number of seconds that is not negative, such as {what}(0.1)")
