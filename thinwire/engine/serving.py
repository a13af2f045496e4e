"""Serving: a server's half. One coroutine per peer takes its gradients and sends the answers.

Each peer has an edge of its own, so that one that dies or hangs silences nobody else: its edge breaks, the book no
longer counts it, and the others go on. A worker has one gradient under way at a time, so that an edge receives and
answers in turn; whom the rule lets go on beside its sender finds the answer in a box. While there is no answer, the
server says now and then that it is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.types import Key
from thinwire.engine.beside import Beside, BrokenEdge, Spawned
from thinwire.server.book import Book
from thinwire.server.rule import Push
from thinwire.server.uplink import Uplink
from thinwire.server.words import AWAY, BUSY, LAST, PAUSED, READY, Message, Reply, is_word, read

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.channel import Channel
    from thinwire.core.comm import Comm
    from thinwire.server.shards import Shard

log = logging.getLogger("thinwire")
SAVED = "saved"  # to whoever has paused


@final
class Serving:
    """The server of one shard. `push` and `ready` are called for this rank's own worker; the edges do so for others.

    All ranks are peers, also those that only serve: at the end each is sent the model.
    """

    def __init__(self, book: Book, shard: Shard, channel: Channel, seed: int, beside: Beside, ranks: int) -> None:
        self.book, self.shard = book, shard
        self.saved: dict[str, Any] = {}  # the book, when all were last paused
        self._stills = beside.box()  # a word whenever it was saved, for a rank that has no worker
        self._seed, self._beside = seed, beside
        self._up = [Uplink(book.rule, channel, shard.layout, book.x) for _ in range(book.workers)]
        self._lock = threading.Lock()
        self._ending: set[int] = set()  # whoever waits for the last model
        self.boxes = [beside.box() for _ in range(ranks)]
        self.edges: dict[int, Spawned] = {}

    def start(self) -> None:
        """Listen to every other rank."""
        for peer in range(len(self.boxes)):
            if peer != self.shard.rank:
                self.edges[peer] = self._beside.spawn(peer, lambda comm, peer=peer: self._edge(comm, peer))  # type: ignore[misc]

    def raise_if_failed(self) -> None:
        """The error of an edge, where it was not the network's."""
        for edge in self.edges.values():
            if edge.failure is not None:
                raise edge.failure

    def ready(self, rank: int) -> None:
        """A worker asks for its turn."""

        def asked() -> None:
            self.book.back(rank)
            self.book.rule.ready(rank, self.book)

        self._do(asked)

    def push(self, rank: int, message: Message, payload: Tensor) -> None:
        """Decode a gradient and let the rule take it; one that is not finite is dropped."""
        key, device = Key(self._seed, message.clock, rank, self.shard.number), self.book.x.device
        x, keys = self._up[rank].decode(payload.to(device), key)
        push = Push(rank, message.tag, message.clock, message.seconds, message.samples, message.lrs, x, keys)

        def arrived() -> None:
            self.book.back(rank)
            self.book.arrived(push, finite=message.finite)

        self._do(arrived)

    def forget(self) -> None:
        """Lists of keys are named anew."""
        for one in self._up:
            one.forget()

    def pause(self, rank: int) -> None:
        """A worker has stopped to save; it goes on when all have, and this book is saved."""

        def paused() -> None:
            self.book.back(rank)
            self.book.pause(rank)

        self._do(paused)

    def step_out(self, rank: int) -> None:
        """A worker is not to be waited for until it is heard of again."""
        self._do(lambda: self.book.step_out(rank))

    def leave(self, rank: int, *, waits: bool = True) -> None:
        """A peer has ended and waits for the last model, or it is gone."""

        def left() -> None:
            if waits:
                self._ending.add(rank)
            self.book.leave(rank)

        self._do(left)

    async def word(self, rank: int, meanwhile: Callable[[], Awaitable[None]]) -> Any:
        """The next word for a peer; while there is none, `meanwhile` is done now and then."""
        while (word := await self.boxes[rank].take(self._beside.beat)) is None:
            await meanwhile()
        return word

    async def still(self) -> dict[str, Any]:
        """The book, when all workers are paused or have ended; for a rank that has no worker."""
        with self._lock:
            if not self.book.alive:
                return self.book.save()
        await self._stills.take()
        return self.saved

    def _do(self, change: Callable[[], None]) -> None:
        """Change the book, and tell whoever may go on."""
        book = self.book
        with self._lock, torch.no_grad():
            change()
            words: dict[int, Any] = {**book.answers, **book.grants}
            book.answers, book.grants = {}, {}
            if not book.alive:
                self._still(words)
        for rank, word in words.items():
            self.boxes[rank].put(word)

    def _still(self, words: dict[int, Any]) -> None:
        """Nobody trains: those that have not ended are paused, or have met and will go on together."""
        book = self.book
        if book.paused:
            self.saved = book.save()
            self._stills.put(SAVED)
            words |= dict.fromkeys(book.paused, SAVED)
            book.go_on()
        elif book.away:
            book.all_back()
        elif self._ending:
            last = book.rule.result(book).clone().view(torch.uint8)
            words |= dict.fromkeys(self._ending, Reply(book.version, 1.0, last))
            self._ending = set()

    async def _edge(self, comm: Comm, peer: int) -> None:
        there = comm.sub((self.shard.rank, peer))

        async def answer() -> Any:
            return await self.word(peer, lambda: there.post(1, BUSY))

        ended = False
        try:
            while not ended:
                data = (await there.recv(1))[1]
                ended = is_word(data, LAST)
                if ended:
                    self.leave(peer)
                    await there.send(1, (await answer()).pack())  # this process may end right after
                elif is_word(data, READY):
                    self.ready(peer)
                    await wait_until(there, self._beside, await answer())
                    await there.post(1, READY)
                elif is_word(data, AWAY):
                    self.step_out(peer)
                elif is_word(data, PAUSED):
                    self.pause(peer)
                    await answer()
                    await there.post(1, PAUSED)
                else:
                    self.push(peer, *read(data))
                    await there.post(1, (await answer()).pack())
        except BrokenEdge as broken:
            if not ended:
                self.book.lost += peer < self.book.workers
                log.warning("rank %d is lost to %s, and the others go on without it: %s", peer, self.shard, broken)
        finally:
            if not ended:
                self.leave(peer, waits=False)


async def wait_until(comm: Comm, beside: Beside, when: float) -> None:
    """Return at that time."""
    await comm.sleep(max(0.0, when - beside.now()))
