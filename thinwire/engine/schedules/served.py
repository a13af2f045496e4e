"""Served: a worker of parameter servers. It pushes its gradient, and goes on with the model that it is sent.

    worker    C(g) of each shard to its server, with the version of the shard that g was computed with; then
              x = what comes back from all of them
    server    what the rule of the exchange says (`thinwire.server`), beside this rank's own training or alone

The servers take the optimizer's step, so that the worker's own changes nothing, but for shards of which it is sent no
model because its own is new enough. Where the worker's half has `local_steps`, workers step by themselves, and push
once in `Sync(every=...)` steps. With `Sync(of=Delta())` they push how far they went (`thinwire/server/ways.py`), for
the outer step of the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, final

import torch

from thinwire.core.types import Context, Key
from thinwire.engine.anchors import digest
from thinwire.engine.asking import Asking
from thinwire.engine.checkpoint import Restored, agreed
from thinwire.engine.events import Ends, Idle, Settle, StepBegins, StepEnds
from thinwire.engine.half import Half, stepper_of, worker_half
from thinwire.engine.schedules.base import CHANGED, Schedule
from thinwire.engine.serving import Serving
from thinwire.engine.shelf import ENTRY, Whole, check, check_own, mean_memory, put_together, vector
from thinwire.exchange.server import Server
from thinwire.server.book import Book, Part
from thinwire.server.changes import Changes
from thinwire.server.down import Receiver, Sender
from thinwire.server.shards import Shard, cut
from thinwire.server.uplink import Uplink
from thinwire.server.words import Message, Reply

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.engine.loop import Loop


@final
class Served(Schedule):
    """The worker's half; `_server` is there on ranks that serve."""

    takes_closures = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._trains = False  # not before `begin`
        self._start: int | None = None  # what tells the model of `begin` from others; None once a step has been taken

    def begin(self) -> None:
        """Start the server of this rank's shard, if it has one."""
        loop, comm = self.loop, self.loop.runner.comm
        exchange = cast(Server, loop.method.exchange)
        assert exchange.rule is not None
        serving = exchange.serving(comm.size)
        self._rule, self._channel, self._layout = exchange.rule, exchange.channel, loop.layout
        self._shards = cut(self._layout, serving)
        self._workers = exchange.workers(comm.size)
        self._trains = comm.rank < self._workers
        x, seed = loop.model(), loop.runner.seed
        self._start = digest(x)
        self._does = worker_half(loop.method.sync.of, self._rule)
        self._half = Half(self._does, loop, self._shards, self._workers)
        self._local = 0  # steps since the last push
        self._up = [Uplink(self._rule, self._channel, shard.layout, shard.take(x)) for shard in self._shards]
        self._memory = [one.memory for one in self._up]
        self._heard = [self._receiver(exchange, shard, x) for shard in self._shards]
        edges = [(shard.rank, rank) for shard in self._shards for rank in range(comm.size) if rank != shard.rank]
        self._beside = loop.transport.beside(edges)
        self._versions, self._clock = [0] * len(self._shards), 0
        self._samples, self._share = 0.0, 1.0
        self._waited, self._begun = 0.0, loop.now()
        self._server: Serving | None = None
        for shard in self._shards:
            if shard.rank == comm.rank:
                book = self._book(shard, x, self._sender(exchange, shard, x))
                self._server = Serving(book, shard, self._channel, seed, self._beside, comm.size)
                self._server.start()
        self._asking = Asking(self._shards, self._server, self._beside, loop.transport, comm.rank)
        self._beside.farewell = self._end

    @property
    def trains(self) -> bool:
        """Whether this rank has a worker."""
        return self._trains

    async def run(self) -> None:
        """Push, pull, step."""
        loop = self.loop
        while not isinstance(event := await loop.next(StepBegins, Idle, Settle, Ends), Ends):
            if isinstance(event, Settle | Idle):
                if self._trains:
                    await self._asking.step_out()
                if isinstance(event, Idle):
                    await loop.transport.launch(self._met)
                    self._begun = loop.now()  # waiting is no step that took long
                continue
            if not self._trains:
                raise ValueError(
                    f"rank {loop.runner.comm.rank} only serves, and does not train; write `if wire.trains:` before "
                    "the training loop, and wire.detach() after it, which serves until all workers have ended"
                )
            if self._start not in (None, digest(loop.model())):
                raise ValueError(CHANGED.format(kept="the servers' model", call="attach"))
            self._start = None
            loop.skipping.look()
            if self._does.local_steps:
                await self._step_locally()
                continue
            if not loop.skipping.broken or loop.skipping.policy != "raise":
                await self._exchange()
            await loop.next(StepEnds)
            self._count()
        await self._end()

    async def save(self) -> dict[str, Any]:
        """Wait until nobody trains; what this rank's worker and its server then have."""
        if self._trains:
            await self._asking.pause()
            server = None if self._server is None else self._server.saved
            return {ENTRY: {"worker": self._kept(), "server": server}}
        return {ENTRY: {"worker": None, "server": None if self._server is None else await self._server.still()}}

    def check(self, who: str, state: Mapping[str, Any], *, own: bool) -> None:
        """Worker and server; this rank's own have the form of those that it has."""
        check(who, state, self._layout)
        if own:
            book = None if self._server is None else self._server.book
            check_own(who, state[ENTRY], self._kept() if self._trains else None, book)

    async def adopt(self, found: Restored) -> None:
        """Take up this rank's worker and server, or on another number of ranks what all servers had."""
        runner, states, self._start = self.loop.runner, found.everybody, None
        if not found.resized:
            self._resume(found.own[ENTRY])
        else:
            whole = await agreed(runner, lambda: put_together(states, self._layout))
            for shard, memory in zip(self._shards, self._memory, strict=True):
                if not found.fresh:
                    mean_memory(states, shard, self._channel.memory.slots(), memory)
            self._start_from(whole)
        self._begun = self.loop.now()
        await agreed(runner, lambda: None)  # nobody pushes before all servers have their books

    def report(self) -> dict[str, float]:
        """Seconds spent waiting for answers; where this rank serves, the figures of its shard."""
        mine = {"waited_s": self._waited}
        if self._server is None:
            return mine
        return {**mine, "shard": self._server.shard.number, **self._server.book.report()}

    def anchor(self) -> dict[str, Tensor]:
        """What the worker's half calls so, as this rank has heard of it last."""
        if not self._does.anchor:
            return super().anchor()
        x = self.loop.model()
        for shard, state in zip(self._shards, self._half.states, strict=True):
            shard.put(state[self._does.anchor], x)
        layout, parts = self._layout, x.split(list(self._layout.sizes))
        return {n: p.view(s) for n, s, p in zip(layout.names, layout.shapes, parts, strict=True)}

    def batch(self, samples: int) -> int:
        """How many samples to take where workers take so many on average; the next gradient is their mean."""
        self._samples = max(1, round(samples * self._share))
        return int(self._samples)

    async def _step_locally(self) -> None:
        early = self._does.before_step
        if early:
            await self._exchange_if_due()
        self._half.lean()
        await self.loop.next(StepEnds)
        self._local += 1
        if not early:
            await self._exchange_if_due()

    async def _exchange_if_due(self) -> None:
        if not self.loop.quiet() and self._local >= self.loop.method.sync.every:
            self._local = 0
            await self._exchange()
            self._count()

    async def _met(self, comm: Comm) -> None:
        """All workers have ended their batches; ranks that only serve are not asked."""
        word = torch.zeros(1, dtype=torch.uint8)
        others = [rank for rank in range(self._workers) if rank]
        for rank in others if comm.rank == 0 else [0]:
            if comm.rank == 0:
                await comm.recv(rank)
            else:
                await comm.send(0, word)
        for rank in others if comm.rank == 0 else [0]:
            if comm.rank == 0:
                await comm.send(rank, word)
            else:
                await comm.recv(0)

    def _count(self) -> None:
        self.loop.runner.telemetry.stats.elements += self._layout.numel
        self.loop.runner.end_round()

    async def _exchange(self) -> None:
        loop, x = self.loop, self.loop.model()
        finite = bool(x.isfinite().all()) if self._does.local_steps else not loop.skipping.broken
        again = await self._half.again(x) if finite else {}
        finite = finite and all(bool(g.isfinite().all()) for g in again.values())
        now = loop.now()
        messages = self._messages(x, now - self._begun, again, finite=finite)
        if messages is None:
            loop.skipping.elsewhere |= {id(one.parameter) for some in loop.members for one in some}
            return
        if self._rule.turns:
            await self._asking.turn()
        answers = await self._asking.push(messages)
        self._clock += 1
        self._samples = 0.0
        self._begun = loop.now()
        self._waited += self._begun - now
        self._take(answers, x.device)

    def _messages(
        self, x: Tensor, seconds: float, again: Mapping[str, Tensor], *, finite: bool
    ) -> dict[int, tuple[Message, Tensor]] | None:
        """What each server is sent, if anything."""
        loop, comm, lrs = self.loop, self.loop.runner.comm, self._half.lrs
        keys = [Key(loop.runner.seed, self._clock, comm.rank, shard.number) for shard in self._shards]
        pushes, messages = self._half.push(x, keys, again, finite=finite), {}
        if pushes is None:
            return None
        for shard, key, v in zip(self._shards, keys, pushes, strict=True):
            message = Message(self._versions[shard.number], self._clock, seconds, self._samples, finite, lrs)
            up = self._up[shard.number]
            precise = finite and self._half.precise(shard)
            sent = up.encode(v, Context(comm, shard.layout, key), finite=finite, precise=precise)
            if finite and self._does.echoes:
                self._half.sent(shard, up.decoded(sent, key))
            messages[shard.number] = (message, sent.data)
        return messages

    def _take(self, answers: Mapping[int, Reply], device: torch.device) -> None:
        """Go on with what the servers have sent; where one has sent nothing, with a step of this rank's optimizer."""
        self._share = answers[0].share
        models, members = {}, [one for some in self.loop.members for one in some]
        for shard in self._shards:
            answer = answers[shard.number]
            if answer.data is not None:
                self._versions[shard.number] = answer.version
                models[shard.number] = self._heard[shard.number].take(answer.data, device)
                if not self._does.local_steps:
                    self.loop.skipping.elsewhere |= {id(members[t].parameter) for t in shard.tensors}
        self._half.pull(models)

    def _sender(self, exchange: Server, shard: Shard, x: Tensor) -> Sender:
        comm, seed, sparse = self.loop.runner.comm, self.loop.runner.seed, self._rule.sparse
        ends = [self._changes(shard) for _ in range(self._workers if sparse else 0)]
        mine, n = shard.take(x), shard.number
        return Sender(exchange.down, shard.layout, mine, self._workers, comm=comm, seed=seed, shard=n, changes=ends)

    def _receiver(self, exchange: Server, shard: Shard, x: Tensor) -> Receiver:
        rank, seed = self.loop.runner.comm.rank, self.loop.runner.seed
        end, mine, n = self._changes(shard) if self._rule.sparse else None, shard.take(x), shard.number
        return Receiver(exchange.down, shard.layout, mine, seed=seed, rank=rank, shard=n, changes=end)

    def _changes(self, shard: Shard) -> Changes:
        return Changes(shard.layout.numel, cached=self._rule.caches_keys)

    def _forget(self) -> None:
        """What both ends of a wire remember of lists of keys and of the last answers."""
        for up, heard in zip(self._up, self._heard, strict=True):
            up.forget()
            heard.forget()
        if self._server is not None:
            self._server.forget()

    def _book(self, shard: Shard, x: Tensor, down: Sender) -> Book:
        loop = self.loop
        assert loop.optimizer is not None
        items = [item for bucket in loop.buckets for item in bucket.items]
        parts = [Part(items[t].name, items[t].shape, items[t].group) for t in shard.tensors]
        sync, groups = loop.method.sync, len(loop.optimizer.param_groups)
        bound, stepper = sync.staleness, stepper_of(sync.of, self._rule, loop.optimizer)
        return Book(self._rule, shard.take(x), parts, stepper, self._workers, loop.now, bound, down, groups)

    def _kept(self) -> dict[str, Any]:
        """What a checkpoint needs of the worker."""
        model = dict(zip(self._layout.names, self.loop.model().split(list(self._layout.sizes)), strict=True))
        return {
            "model": {name: x.clone() for name, x in model.items()},
            "names": [list(shard.layout.names) for shard in self._shards],
            "sizes": [list(shard.layout.sizes) for shard in self._shards],
            "memory": [{name: t.clone() for name, t in memory.items()} for memory in self._memory],
            "half": [{name: t.clone() for name, t in state.items()} for state in self._half.states],
            "local": self._local,
            "down": [[one.heard, None if one.has is None else one.has.clone()] for one in self._heard],
            "versions": list(self._versions),
            "clock": self._clock,
            "share": self._share,
        }

    def _resume(self, entry: Mapping[str, Any]) -> None:
        """Go on as the same rank."""
        self._forget()
        if self._server is not None:
            self._server.book.load(entry["server"])
        worker = entry["worker"]
        if worker is None:
            return
        self._versions, self._clock, self._share = list(worker["versions"]), worker["clock"], worker["share"]
        for memory, saved in zip(self._memory, worker["memory"], strict=True):
            for name, t in saved.items():
                memory[name].copy_(t)
        self._local = worker["local"]
        for state, saved in zip(self._half.states, worker["half"], strict=True):
            for name, t in saved.items():
                state[name].copy_(t)
        for one, (heard, has) in zip(self._heard, worker["down"], strict=True):
            one.heard = heard
            if one.has is not None:
                one.has.copy_(has)
        self.loop.set(vector(worker["model"], self._layout.names))

    def _start_from(self, whole: Whole) -> None:
        """Begin with a model that all have."""
        self._forget()
        x = vector(whole.x, self._layout.names).to(self.loop.model().device)
        self._versions, self._clock = [whole.version] * len(self._shards), whole.clock
        for shard, one in zip(self._shards, self._heard, strict=True):
            if one.has is not None:
                one.has.copy_(shard.take(x))
        if self._server is not None:
            self._server.book.adopt(whole.x, whole.optimizer, whole.version, whole.clock)
        self.loop.set(x)
        self._half.begin(x)
        self._local = 0

    async def _end(self) -> None:
        """Wait until all workers have ended, and take the model that they leave."""
        answers = await self._asking.end()
        x = self.loop.model()
        for shard in self._shards:
            data = answers[shard.number].data
            assert data is not None
            shard.put(data.view(torch.float32).to(x.device), x)
        self.loop.set(x)
