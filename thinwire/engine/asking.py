"""Asking: a worker's half of a parameter server. It talks to the server of every shard, and waits for all of them.

What goes to several servers is posted to all of them before an answer is waited for. A rank that serves a shard
itself asks that server in its own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

from thinwire.core.errors import PeerError
from thinwire.engine.serving import Serving, wait_until
from thinwire.engine.waiting import named
from thinwire.server.words import AWAY, BUSY, LAST, PAUSED, READY, Message, Reply, is_word, reply

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.engine.beside import Beside
    from thinwire.engine.transport import Transport
    from thinwire.server.shards import Shard

T = TypeVar("T")


@final
class Asking:
    """`own` is the server on this rank, if there is one."""

    def __init__(
        self, shards: Sequence[Shard], own: Serving | None, beside: Beside, transport: Transport, rank: int
    ) -> None:
        self._shards, self._own, self._beside, self._transport, self._rank = shards, own, beside, transport, rank
        self._others = [shard for shard in shards if shard.rank != rank]
        self._asked: Shard | None = None  # whose server is being talked to
        self._heard = transport.now()  # when the servers last answered

    async def turn(self) -> None:
        """Wait until it is this worker's turn at every server."""
        await self._tell(dict.fromkeys(self._numbers, READY))
        if self._own is not None:
            self._own.ready(self._rank)
            when = await self._word()
            # Not in a lane: their turns must stay the same on all ranks.
            await self._beside.call(lambda comm: wait_until(comm, self._beside, when))
        await self._hear()

    async def push(self, messages: dict[int, tuple[Message, Tensor]]) -> dict[int, Reply]:
        """Send the parts of a gradient, by shard; returns the answers."""
        await self._tell({number: messages[number][0].pack(messages[number][1]) for number in self._numbers})
        if self._own is not None:
            self._own.push(self._rank, *messages[self._own.shard.number])
        return await self._replies()

    async def pause(self) -> None:
        """Wait until all workers have paused, and every server has saved its book."""
        await self._tell(dict.fromkeys(self._numbers, PAUSED))
        if self._own is not None:
            self._own.pause(self._rank)
            await self._word()
        await self._hear()

    async def step_out(self) -> None:
        """Let nobody wait for this worker until it pushes again."""
        await self._tell(dict.fromkeys(self._numbers, AWAY))
        if self._own is not None:
            self._own.step_out(self._rank)

    async def end(self) -> dict[int, Reply]:
        """Say that no more comes; returns the last model, by shard, when all have ended."""
        await self._tell(dict.fromkeys(self._numbers, LAST))
        if self._own is not None:
            self._own.leave(self._rank)
        found = await self._replies()
        if self._own is not None:
            await self._beside.join(list(self._own.edges.values()), None)
        return found

    @property
    def _numbers(self) -> list[int]:
        return [shard.number for shard in self._others]

    async def _replies(self) -> dict[int, Reply]:
        found: dict[int, Reply] = {}
        if self._own is not None:
            found[self._own.shard.number] = await self._word()
        for number, data in (await self._hear()).items():
            found[number] = reply(data)
        return found

    async def _word(self) -> Any:
        assert self._own is not None
        return await self._own.word(self._rank, self._look)

    async def _look(self) -> None:
        assert self._own is not None
        self._own.raise_if_failed()

    async def _tell(self, messages: dict[int, Tensor]) -> None:
        async def tell(comm: Comm) -> None:
            for shard in self._others:
                self._asked = shard
                await comm.sub((shard.rank, self._rank)).post(0, messages[shard.number])

        if self._own is not None:
            self._own.raise_if_failed()
        if self._others:
            await self._call(tell)

    async def _hear(self) -> dict[int, Tensor]:
        async def hear(comm: Comm) -> dict[int, Tensor]:
            found = {}
            for shard in self._others:
                self._asked = shard
                there = comm.sub((shard.rank, self._rank))
                while is_word(data := (await there.recv(0))[1], BUSY):
                    continue
                found[shard.number] = data
            self._heard = self._transport.now()
            return found

        return await self._call(hear) if self._others else {}

    async def _call(self, work: Callable[[Comm], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._beside.call(work)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> Exception:
        """Which shard is lost, and with which rank.

        A rank that serves takes its shard with it when it raises, so that all others fail too: the roll is called to
        find out who was first. Where servers are set apart, they do not end because of each other.
        """
        shard, silent = self._asked, self._transport.now() - self._heard
        assert shard is not None
        if self._own is None and silent > self._transport.timeout:
            rank = self._transport.name(shard.rank)
            text = f"the server on rank {rank} goes on without this rank, which was silent for {silent:.0f} s"
            return PeerError(f"{text}; write a longer timeout", (rank,))
        name = self._transport.name
        missing = () if self._own is None else getattr(self._transport.explain(error), "ranks", ())
        shard = next((one for one in self._shards if name(one.rank) in missing), shard)
        text = f"the server on rank {name(shard.rank)} is lost, and with it {shard} of the model"
        more = f"; {named(missing)} cannot be reached or do not answer" if len(missing) > 1 else ""
        return PeerError(f"{text}{more}: {error}", missing or (name(shard.rank),))
