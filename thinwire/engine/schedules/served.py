"""Served: a worker of a parameter server. It pushes its gradient, and goes on with the model that it is sent.

    worker    C(g) to rank 0, with the version of the model that g was computed with; then x = what comes back
    server    what the rule of the exchange says (`thinwire.server`); rank 0 serves beside its own training

The server takes the optimizer's step, so that the worker's own changes nothing, unless the server sends no model
because the worker's is new enough. Where the rule has `local_steps`, workers step by themselves, and
push after every `Sync(every=...)` steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, final

from thinwire.core.errors import PeerError
from thinwire.core.types import Context, Key
from thinwire.engine.events import Ends, StepBegins, StepEnds
from thinwire.engine.half import Half
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.serving import LAST, READY, Message, Serving, downlink, unpacked, wait_until
from thinwire.exchange.server import SERVER, Server
from thinwire.server.book import Answer, Book, Part
from thinwire.server.uplink import Uplink

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm


@final
class Served(Schedule):
    """The worker's half; `_server` is there on rank 0 alone."""

    def begin(self) -> None:
        """Start the server on rank 0."""
        loop, comm = self.loop, self.loop.runner.comm
        exchange = cast(Server, loop.method.exchange)
        assert exchange.rule is not None
        assert loop.optimizer is not None
        self._rule, self._channel, self._layout = exchange.rule, exchange.channel, loop.layout
        self._half = Half(self._rule, loop)
        self._up = Uplink(self._rule, self._channel, self._layout, loop.model())
        self._down = downlink(self._rule, loop.model())
        self._local = 0  # steps since the last push
        self._beside = loop.transport.beside([(SERVER, rank) for rank in range(1, comm.size)])
        self._version = self._clock = 0
        self._waited, self._begun = 0.0, loop.now()
        self._server: Serving | None = None
        if comm.rank == SERVER:
            parts = [Part(item.shape, item.group) for bucket in loop.buckets for item in bucket.items]
            x, bound = loop.model(), loop.method.sync.staleness
            book = Book(self._rule, x, parts, loop.optimizer, comm.size, loop.now, bound)
            self._server = Serving(book, self._channel, self._layout, loop.runner.seed, self._beside)
            self._server.start()

    async def run(self) -> None:
        """Push, pull, step."""
        loop = self.loop
        while not isinstance(await loop.next(StepBegins, Ends), Ends):
            loop.skipping.look()
            if self._rule.local_steps:
                await self._step_locally()
                continue
            if not loop.skipping.broken or loop.skipping.policy != "raise":
                await self._exchange()
            await loop.next(StepEnds)
            self._count()
        await self._end()

    async def save(self) -> dict[str, Any]:
        """Refuse: at no time between steps do all ranks have a common state."""
        raise ValueError(
            "a server without rounds has no checkpoint; write torch.save(model.state_dict(), ...) on rank 0"
        )

    def report(self) -> dict[str, float]:
        """Seconds spent waiting for answers; on rank 0 the server's figures."""
        mine = {"waited_s": self._waited}
        return mine if self._server is None else {**mine, **self._server.book.report()}

    async def _step_locally(self) -> None:
        loop = self.loop
        self._half.lean()
        await loop.next(StepEnds)
        self._local += 1
        if not loop.quiet() and self._local >= loop.method.sync.every:
            self._local = 0
            await self._exchange()
            self._count()

    def _count(self) -> None:
        self.loop.runner.telemetry.stats.elements += self._layout.numel
        self.loop.runner.end_round()

    async def _exchange(self) -> None:
        loop, x = self.loop, self.loop.model()
        finite = bool(x.isfinite().all()) if self._rule.local_steps else not loop.skipping.broken
        comm, now = loop.runner.comm, loop.now()
        message = Message(self._version, self._clock, now - self._begun, finite, self._half.lrs)
        ctx = Context(comm, self._layout, Key(loop.runner.seed, self._clock, comm.rank))
        sent = self._up.encode(self._half.push(x, ctx.key, finite=finite), ctx, finite=finite)
        if finite and self._rule.echoes:
            self._rule.sent(self._up.decoded(sent, ctx.key), self._half.state)
        answer = await (self._ask_myself(message, sent.data) if self._server else self._ask(message, sent.data))
        self._clock += 1
        self._begun = loop.now()
        self._waited += self._begun - now
        if answer.model is not None:
            self._version = answer.version
            self._half.pull(x, answer.model)
            loop.skipping.elsewhere = not self._rule.local_steps

    async def _ask_myself(self, message: Message, payload: Tensor) -> Answer:
        assert self._server is not None
        box = self._server.boxes[SERVER]
        self._server.raise_if_failed()
        if self._rule.turns:
            self._server.ready(SERVER)
            await self._sleep_until(await box.take())
        self._server.push(SERVER, message, payload)
        answer: Answer = await box.take()
        return answer

    async def _sleep_until(self, when: float) -> None:
        async def sleep(comm: Comm) -> None:
            await wait_until(comm, self._beside, when)

        await self.loop.transport.launch(sleep)

    async def _ask(self, message: Message, payload: Tensor) -> Answer:
        async def ask(comm: Comm) -> Answer:
            there = comm.sub((SERVER, comm.rank))
            if self._rule.turns:
                await there.post(0, READY)
                await there.recv(0)
            await there.post(0, message.pack(payload))
            return unpacked((await there.recv(0))[1], self._down)

        try:
            return await self._beside.call(ask)
        except RuntimeError as error:
            raise PeerError(f"the server on rank {SERVER} is lost: {error}", (SERVER,)) from error

    async def _end(self) -> None:
        if self._server is not None:
            self._server.leave(SERVER)
            await self._beside.join(list(self._server.edges.values()), self.loop.transport.timeout)
            self.loop.set(self._server.book.x)
        else:
            await self._beside.call(_last)


async def _last(comm: Comm) -> None:
    """Returns when the server has it, so that nothing is left on the way."""
    await comm.sub((SERVER, comm.rank)).send(0, LAST)
