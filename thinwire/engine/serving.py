"""Serving: the server's half. One coroutine per worker takes its gradients and sends the answers.

Each worker has an edge of its own, so that one that dies or hangs silences nobody else: its edge breaks, the book no
longer counts it, and the others go on. A worker has one gradient under way at a time, so that an edge receives and
answers in turn; whom the rule lets go on beside its sender finds the answer in a box.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

from thinwire.core.comm import to_bytes, to_tensor
from thinwire.core.types import Key
from thinwire.engine.beside import Beside, BrokenEdge, Spawned
from thinwire.exchange.server import SERVER
from thinwire.server.book import Answer, Book
from thinwire.server.downlink import Downlink
from thinwire.server.rule import Push, Rule
from thinwire.server.uplink import Uplink

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.channel import Channel
    from thinwire.core.comm import Comm
    from thinwire.core.types import Layout

UP = struct.Struct("<qqdqq")  # tag, clock, seconds, finite, learning rates
DOWN = struct.Struct("<qq")  # version, what follows
ALIGNED = 16
READY = torch.zeros(1, dtype=torch.uint8)  # a worker asks for its turn, and a server grants it
LAST = torch.zeros(0, dtype=torch.uint8)  # a worker's last message


class Message(NamedTuple):
    """What a worker pushes."""

    tag: int
    clock: int
    seconds: float
    finite: bool
    lrs: tuple[float, ...]

    def pack(self, payload: Tensor) -> Tensor:
        """One message of bytes."""
        head = UP.pack(self.tag, self.clock, self.seconds, self.finite, len(self.lrs))
        head += struct.pack(f"<{len(self.lrs)}d", *self.lrs)
        head = head.ljust(-(-len(head) // ALIGNED) * ALIGNED, b"\0")
        return torch.cat((to_tensor(head), payload.cpu()))


def read(data: Tensor) -> tuple[Message, Tensor]:
    """The message, and the bytes of its payload."""
    tag, clock, seconds, finite, count = UP.unpack(to_bytes(data[: UP.size]))
    end = UP.size + 8 * count
    lrs = struct.unpack(f"<{count}d", to_bytes(data[UP.size : end]))
    return Message(tag, clock, seconds, bool(finite), lrs), data[-(-end // ALIGNED) * ALIGNED :]


def packed(answer: Answer, down: Downlink) -> Tensor:
    """What a worker is sent."""
    if answer.model is None:
        return to_tensor(DOWN.pack(answer.version, 0))
    what, body = down.pack(answer.model)
    return torch.cat((to_tensor(DOWN.pack(answer.version, what)), body))


def unpacked(data: Tensor, down: Downlink) -> Answer:
    """The same again."""
    version, what = DOWN.unpack(to_bytes(data[: DOWN.size]))
    return Answer(version, down.unpack(what, data[DOWN.size :]) if what else None)


def downlink(rule: Rule, x: Tensor) -> Downlink:
    """One end of the way to a worker."""
    return Downlink(x, changes=rule.sparse, cached=rule.caches_keys)


@final
class Serving:
    """`push` and `ready` are called for this rank's own worker; the edges call them for the others."""

    def __init__(self, book: Book, channel: Channel, layout: Layout, seed: int, beside: Beside) -> None:
        self.book = book
        self._seed, self._beside = seed, beside
        self._up = [Uplink(book.rule, channel, layout, book.x) for _ in range(book.workers)]
        self._down = [downlink(book.rule, book.x) for _ in range(book.workers)]
        self._lock = threading.Lock()
        self.boxes = [beside.box() for _ in range(book.workers)]
        self.edges: dict[int, Spawned] = {}

    def start(self) -> None:
        """Listen to every other rank."""
        for peer in range(self.book.workers):
            if peer != SERVER:
                self.edges[peer] = self._beside.spawn(peer, lambda comm, peer=peer: self._edge(comm, peer))  # type: ignore[misc]

    def raise_if_failed(self) -> None:
        """The error of an edge, where it was not the network's."""
        for edge in self.edges.values():
            if edge.failure is not None:
                raise edge.failure

    def ready(self, rank: int) -> None:
        """A worker asks for its turn."""
        self._do(lambda: self.book.rule.ready(rank, self.book))

    def push(self, rank: int, message: Message, payload: Tensor) -> None:
        """Decode a gradient and let the rule take it; one that is not finite is dropped."""
        key, device = Key(self._seed, message.clock, rank), self.book.x.device
        x, keys = self._up[rank].decode(payload.to(device), key)
        push = Push(rank, message.tag, message.clock, message.seconds, message.lrs, x, keys)
        self._do(lambda: self.book.arrived(push, finite=message.finite))

    def leave(self, rank: int) -> None:
        """A worker has ended or died."""
        self._do(lambda: self.book.leave(rank))

    def _do(self, change: Callable[[], None]) -> None:
        """Change the book, and tell whoever may go on."""
        with self._lock, torch.no_grad():
            change()
            answers: dict[int, Any] = {**self.book.answers, **self.book.grants}
            self.book.answers, self.book.grants = {}, {}
        for rank, word in answers.items():
            self.boxes[rank].put(word)

    async def _edge(self, comm: Comm, peer: int) -> None:
        there = comm.sub((SERVER, peer))
        try:
            while (data := (await there.recv(1))[1]).numel():
                if data.numel() == READY.numel():
                    self.ready(peer)
                    await wait_until(there, self._beside, await self.boxes[peer].take())
                    await there.post(1, READY)
                else:
                    self.push(peer, *read(data))
                    await there.post(1, packed(await self.boxes[peer].take(), self._down[peer]))
        except BrokenEdge:
            pass  # it is gone, and the others go on
        self.leave(peer)


async def wait_until(comm: Comm, beside: Beside, when: float) -> None:
    """Return at that time."""
    await comm.sleep(max(0.0, when - beside.now()))
