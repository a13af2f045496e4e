"""The driver over torch.distributed: one rank's coroutines, each request answered on the network before the next.

Gathers, all-to-alls and swaps are sends and receives to each peer, so that sizes may differ and nothing is padded or
copied into a common buffer; sums are the backend's own all-reduce. Sizes that a request does not promise are asked
for first, eight bytes per peer, unless an upper bound is known. Peers that share a group of their own talk on it.
With gloo a CUDA tensor is staged through pinned memory (`comm/pinned.py`): what crosses the bus is what the request
holds, so an exchange that compresses on the GPU moves only its payload. The thread waits once, for the bytes that it
is to send. What arrives goes to the GPU without a wait, and its first bytes are noted in `Comm.heads` on the way.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm import backend as backends
from thinwire.comm.pinned import Pinned
from thinwire.comm.posted import Posted
from thinwire.core.clock import Clock
from thinwire.core.comm import (
    AllGatherRequest,
    AllReduceRequest,
    AllToAllRequest,
    Comm,
    ComputeRequest,
    NowRequest,
    PostRequest,
    RecvRequest,
    Request,
    SendRequest,
    SleepRequest,
    SwapRequest,
    Traffic,
    Wait,
    count,
)
from thinwire.core.desk import at_desk, away, seated
from thinwire.core.payload import HEADER, MAGIC, size_of

T = TypeVar("T")
Ranks = tuple[int, ...]
LOCAL: dict[type, Callable[[Any], float | None]] = {
    NowRequest: lambda request: time.perf_counter(),
    SleepRequest: lambda request: time.sleep(request.seconds),
    ComputeRequest: lambda request: None,  # what is computed here takes its own time
}
"""Requests that need no network."""
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
DTYPES = (torch.uint8, torch.float32, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.int32)


class EdgeError(RuntimeError):
    """A connection broke or timed out; `peers` are the ranks at its other end, where they are known."""

    def __init__(self, message: str, peers: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.peers = peers


def timed_out(error: BaseException) -> bool:
    """Whether the network took too long, and did not break: gloo and torch say so in words alone.

    >>> timed_out(RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv"))
    True
    >>> timed_out(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:31922"))
    False
    """
    text = str(error).lower()
    return "timed out" in text or "timeout" in text


@final
class Processes:
    """Runs coroutines of this rank over `groups`: the process groups by their ranks, everybody's first.

    One driver is used by one thread. Two drivers with groups of their own do not disturb each other.

    With `gone`, a set that drivers of one rank may share, a swap goes on without a peer that has broken off: the peer
    joins the set and its answer is missing. `dropped` is told of it, with the error.

    Drivers that share their groups take turns on them: `gate` returns when this one may use the network.
    """

    def __init__(
        self,
        groups: Mapping[Ranks, dist.ProcessGroup],
        gone: set[int] | None = None,
        backend: backends.Backend | None = None,
        dropped: Callable[[int, RuntimeError], None] | None = None,
    ) -> None:
        self._groups = dict(groups)
        everybody = next(iter(self._groups.values()))
        self._patient = gone is None
        self._dropped = dropped
        self._backend = backend or backends.named(backends.name_of(everybody))
        rank, self._global = self._backend.places(everybody)
        self.comm = Comm(rank, len(self._global), gone=set() if gone is None else gone)
        self.gate: Callable[[], None] = _open
        self._handlers: dict[type, Callable[[Any, int], Any]] = {
            AllReduceRequest: self._all_reduce,
            AllGatherRequest: self._all_gather,
            AllToAllRequest: self._all_to_all,
            SwapRequest: self._swap,
            SendRequest: self._send,
            PostRequest: self._post_one,
            RecvRequest: self._recv,
        }
        self._edges: dict[tuple[Ranks, int], tuple[dist.ProcessGroup, int]] = {}
        self._posted = Posted()
        self._pinned = Pinned()

    @property
    def everybody(self) -> dist.ProcessGroup:
        """The group of all ranks."""
        return next(iter(self._groups.values()))

    @property
    def traffic(self) -> Traffic:
        """The traffic that this driver has sent."""
        return self.comm.traffic

    def run(self, coroutine: Coroutine[Any, Any, T], clock: Clock | None = None) -> T:
        """Run to the end, and tell `clock` the time on the wire."""
        clock = clock or Clock()
        answer: Any = None
        try:
            while True:
                try:
                    request = coroutine.send(answer)
                except StopIteration as done:
                    result: T = done.value
                    return result
                if seated():
                    with away():
                        answer = self._timed(request, clock)
                else:
                    answer = self._timed(request, clock)
        finally:
            coroutine.close()

    def _timed(self, request: Any, clock: Clock) -> Any:
        if type(request) not in self._handlers and isinstance(request, Wait):
            return request.answer()
        start = clock.now()
        answer = self.answer(request)
        clock.notes.append(("wire", start, clock.now()))
        return answer

    def answer(self, request: Request[Any]) -> Any:
        """Do on the network what `request` asks for."""
        handler = self._handlers.get(type(request))
        if handler is None:
            alone = LOCAL.get(type(request))
            if alone is not None:
                return alone(request)
            raise TypeError(
                f"awaited {request!r}; under a thinwire driver only requests of its Comm can be awaited "
                "(there is no asyncio loop here)"
            )
        if len(request.ranks) == 1:
            return _alone(request)
        me = request.ranks.index(self.comm.rank)
        self.gate()
        count(self.comm.traffic, me, request)
        try:
            return handler(request, me)
        except BaseException:
            self._pinned.abandon()
            raise

    def _all_reduce(self, request: AllReduceRequest, me: int) -> Tensor:
        x = request.x
        there = x if self._backend.holds(x) and not self.comm.due else self._stage(x)[0]
        self._backend.all_reduce(there, OPS[request.op], self._groups[request.ranks])
        if there is x:
            return x
        if self._backend.batched:
            return _to(there, x.device)
        x.copy_(there, non_blocking=True)
        self._pinned.give_back(x)
        return x

    def _all_gather(self, request: AllGatherRequest, me: int) -> list[Tensor]:
        everybody = range(len(request.ranks))
        sends = {peer: request.x for peer in everybody if peer != me}
        arrived = self._trade(request.ranks, sends, tuple(sends), self._room(request), request.x, exact=request.exact)
        return [request.x if peer == me else arrived[peer] for peer in everybody]

    def _all_to_all(self, request: AllToAllRequest, me: int) -> list[Tensor]:
        sends = {peer: x for peer, x in enumerate(request.xs) if peer != me}
        arrived = self._trade(
            request.ranks, sends, tuple(sends), self._room(request), request.xs[me], exact=request.exact
        )
        return [x if peer == me else arrived[peer] for peer, x in enumerate(request.xs)]

    def _room(self, request: AllGatherRequest | AllToAllRequest) -> Sequence[int] | None:
        """How much room to make, or None to ask. gloo takes a message shorter than its buffer, nccl does not."""
        return request.sizes if request.exact or not self._backend.batched else None

    def _swap(self, request: SwapRequest, me: int) -> dict[int, Tensor]:
        sizes = (request.x.numel(),) * len(request.ranks) if request.equal else None
        sends = dict.fromkeys(request.peers, request.x)
        return self._trade(request.ranks, sends, request.sources, sizes, request.x)

    def _trade(
        self,
        ranks: Ranks,
        sends: Mapping[int, Tensor],
        sources: Sequence[int],
        sizes: Sequence[int] | None,
        like: Tensor,
        *,
        exact: bool = True,
    ) -> dict[int, Tensor]:
        """Send to peers of the group, receive from the sources; `sizes` are by source, asked for when None.

        Messages that are not `exact` may be shorter than the sizes promise.
        """
        if sizes is None:
            mine = {peer: self._small([x.numel()]) for peer, x in sends.items()}
            theirs = {peer: self._backend.room(1, torch.int64, like) for peer in sources}
            self.traffic.count(*mine.values())
            broken = self._post(ranks, mine, theirs)
            known = {peer: int(size) for peer, size in theirs.items() if peer not in broken}
            sends = {peer: x for peer, x in sends.items() if peer not in broken}
        else:
            known = {peer: sizes[peer] for peer in sources}
        if self._backend.batched or self._backend.holds(like):
            buffers = {p: self._backend.room(n, like.dtype, like) for p, n in known.items()}
            broken = self._post(ranks, dict(zip(sends, self._stage(*sends.values()), strict=True)), buffers)
            if like.is_cpu and not (broken or self._backend.batched):
                return buffers
            return {p: _to(buffer, like.device) for p, buffer in buffers.items() if p not in broken}
        buffers = {p: self._pinned.take(n, like.dtype) for p, n in known.items()}
        broken = self._post(ranks, dict(zip(sends, self._stage(*sends.values()), strict=True)), buffers)
        with at_desk():
            arrived = {p: self._up(b, like.device, exact=exact) for p, b in buffers.items() if p not in broken}
            self._pinned.abandon() if broken else self._pinned.give_back(like)
        return arrived

    def _up(self, buffer: Tensor, device: torch.device, *, exact: bool) -> Tensor:
        """What arrived in pinned memory, on the GPU, and its first bytes in `heads`. Room that is left stays here."""
        if buffer.dtype != torch.uint8 or buffer.numel() < HEADER.size:
            return _copied(buffer, device)
        head = ctypes.string_at(buffer.data_ptr(), HEADER.size)
        if not exact and head.startswith(MAGIC):
            buffer = buffer[: size_of(head)]
        x = _copied(buffer, device)
        self.comm.heads[x] = head
        return x

    def _post(self, ranks: Ranks, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> set[int]:
        """Do all sends and receives of one round, from the next neighbour on; returns the peers that broke off."""
        me, n = ranks.index(self.comm.rank), len(ranks)
        incoming = [(p, receives[p]) for p in sorted(receives, key=lambda p: (me - p) % n) if receives[p].numel()]
        outgoing = [(p, sends[p].contiguous()) for p in sorted(sends, key=lambda p: (p - me) % n) if sends[p].numel()]
        if self._backend.batched:
            into, out_of = ([(self._global[ranks[p]], x) for p, x in posts] for posts in (incoming, outgoing))
            self._backend.at_once(into, out_of, self._groups[ranks])
            return set()
        works: list[tuple[int, dist.Work]] = []
        broken: set[int] = set()
        for posts, call in ((incoming, dist.ProcessGroup.recv), (outgoing, dist.ProcessGroup.send)):
            for peer, tensor in posts:
                group, place = self._between(ranks, peer)
                try:
                    works.append((peer, call(group, [tensor], place, 0)))
                except RuntimeError as error:
                    self._broke(ranks, peer, broken, error)
        for peer, work in works:
            try:
                self._backend.finish(work)
            except RuntimeError as error:
                self._broke(ranks, peer, broken, error)
        return broken

    def _between(self, ranks: Ranks, peer: int) -> tuple[dist.ProcessGroup, int]:
        """The group of this rank and a peer alone, if there is one, so that a fault on it stays between them.

        Also returns the peer's place in it.
        """
        found = self._edges.get((ranks, peer))
        if found is None:
            pair = tuple(sorted((self.comm.rank, ranks[peer])))
            alone = self._groups.get(pair)
            found = (self._groups[ranks], peer) if alone is None else (alone, pair.index(ranks[peer]))
            self._edges[ranks, peer] = found
        return found

    def _broke(self, ranks: Ranks, peer: int, broken: set[int], error: RuntimeError) -> None:
        """Name the edge in an error, or go on without the peer where that is allowed."""
        other = ranks[peer]
        if self._patient:
            here, there = self._global[self.comm.rank], self._global[other]
            what = "timed out" if timed_out(error) else "broke"
            raise EdgeError(f"the edge {here}-{there} {what}: {error}", (there,)) from error
        broken.add(peer)
        self.comm.gone.add(other)
        if self._dropped is not None:
            self._dropped(other, error)

    def _send(self, request: SendRequest, me: int) -> None:
        group, to = self._groups[request.ranks], self._global[request.ranks[request.to]]
        for part in self._parts(request.x):
            self._backend.send(part, to, group)

    def _post_one(self, request: PostRequest, me: int) -> None:
        group, to = self._groups[request.ranks], self._global[request.ranks[request.to]]
        parts = self._parts(request.x.clone())  # the sender may go on to change its own
        works = [self._backend.post(part, to, group) for part in parts]
        self._posted.keep([work for work in works if work is not None], parts)

    def _parts(self, x: Tensor) -> list[Tensor]:
        """What goes over the wire for one tensor: its kind and size, and its elements if it has any."""
        x = (x if self._backend.holds(x) else self._backend.bring(x)).contiguous()
        head = self._small([DTYPES.index(x.dtype), x.numel()])
        self.traffic.count(head)
        return [head, x] if x.numel() else [head]

    def _small(self, numbers: Sequence[int]) -> Tensor:
        """A few numbers to send."""
        found = torch.tensor(numbers)
        return found if self._backend.holds(found) else self._backend.bring(found)

    def let_go(self) -> None:
        """Forget the groups, whose connections close with their last reference."""
        self._groups, self._edges = {}, {}

    def finish(self) -> None:
        """Wait until every message that was posted has been received. A rank that posts calls it before it leaves."""
        self._posted.finish()

    def _recv(self, request: RecvRequest, me: int) -> tuple[int, Tensor]:
        group = self._groups[request.ranks]
        here = torch.empty(0)
        head = self._backend.room(2, torch.int64, here)
        source = None if request.source is None else self._global[request.ranks[request.source]]
        sender = self._backend.recv(head, source, group)
        dtype, size = head.tolist()
        x = self._backend.room(size, DTYPES[dtype], here)
        if size:
            self._backend.recv(x, sender, group)
        return request.ranks.index(self._global.index(sender)), x

    def _stage(self, *tensors: Tensor) -> list[Tensor]:
        """The tensors where the backend can read them; one that occurs twice is copied once.

        Checks that are due cross to the host with what is fetched, so that they are not waited for.
        """
        due = [] if self._backend.batched else self.comm.due
        if not due and all(map(self._backend.holds, tensors)):
            return list(tensors)
        there: dict[int, Tensor] = {}
        low: dict[int, Tensor] = {}
        for x in tensors:
            if self._backend.holds(x):
                there[id(x)] = x
            elif not self._backend.batched:
                low[id(x)] = x
            elif id(x) not in there:
                there[id(x)] = self._backend.bring(x)
        with at_desk() if low or due else nullcontext():
            for verdicts in due:
                verdicts.send()
            there |= dict(zip(low, self._pinned.fetch(*low.values()), strict=True))
            for verdicts in due:
                verdicts.raise_if_sent()
        return [there[id(x)] for x in tensors]


def _open() -> None:
    """Whoever does not share its groups may always use them."""


def _alone(request: Request[Any]) -> Any:
    """A group of one answers itself."""
    if isinstance(request, AllReduceRequest):
        return request.x
    if isinstance(request, AllGatherRequest):
        return [request.x]
    if isinstance(request, AllToAllRequest):
        return list(request.xs)
    return {}


def _copied(x: Tensor, device: torch.device) -> Tensor:
    """A copy of pinned memory, which is not waited for."""
    return torch.empty(x.shape, dtype=x.dtype, device=device).copy_(x, non_blocking=True)


def _to(x: Tensor, device: torch.device) -> Tensor:
    """`x` there; what goes to the host is waited for, since the host may read it at once."""
    return x.to(device, non_blocking=device.type == "cuda")
