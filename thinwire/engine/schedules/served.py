"""Served: a parameter server without rounds. A worker's step is added to the server's model when it arrives (ASGD).

    worker    u = C(x_after - x_before), sent to rank 0; then x = the model that comes back
    server    x = x + u, in the order of arrival; answers with x

Rank 0 serves beside its own training. With plain SGD u = -lr g: steps are taken with gradients that are as old as
`stats()["staleness_mean"]` says. An empty message is a worker's last.

Reference: Dean, Corrado, Monga, et al., "Large scale distributed deep networks", NeurIPS 2012, Downpour SGD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from thinwire.core.channel import Channel
from thinwire.core.payload import Payload
from thinwire.core.types import Context, Key, Layout, State
from thinwire.engine.events import Ends, StepBegins, StepEnds
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.shared import Shared
from thinwire.exchange.server import SERVER

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.engine.loop import Loop


@final
class Served(Schedule):
    """The model of the server is `_shared` on rank 0; the others push to it and pull from it."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._channel: Channel = loop.method.exchange.channels[0]
        items = [item for bucket in loop.buckets for item in bucket.items]
        self._layout = Layout(tuple(item.name for item in items), tuple(item.shape for item in items))
        self._memory: State = self._channel.memory.init(torch.empty(self._layout.numel))
        self._steps = self._stale = self._most = 0

    def begin(self) -> None:
        """Start the server on rank 0."""
        comm = self.loop.runner.comm
        self._shared, self._seen = Shared(self._model()), dict.fromkeys(range(comm.size), 0)
        self._beside = self.loop.transport.beside([])
        if comm.rank == SERVER:
            self._serving = self._beside.spawn(SERVER, self._serve)

    async def run(self) -> None:
        """Step, push, pull."""
        loop, rank = self.loop, self.loop.runner.comm.rank
        while True:
            if isinstance(await loop.next(StepBegins, Ends), Ends):
                await self._end()
                return
            loop.skipping.look()
            before = self._model()
            await loop.next(StepEnds)
            pushed = self._channel.send(self._model() - before, self._memory, self._context(rank, self._steps))
            assert pushed is not None
            self._take(await self._push(pushed))
            self._steps += 1
            loop.runner.telemetry.stats.elements += self._layout.numel
            loop.runner.end_round()

    def report(self) -> dict[str, float]:
        """How many steps of others a step did not know of; on rank 0 for all workers."""
        return {"staleness_mean": self._stale / max(1, self._shared.version), "staleness_max": self._most}

    async def _push(self, pushed: Payload) -> Tensor:
        if self.loop.runner.comm.rank == SERVER:
            return self._apply(SERVER, pushed, self._steps)

        async def push(comm: Comm) -> Tensor:
            await comm.post(SERVER, pushed.data)
            return (await comm.recv(SERVER))[1].view(torch.float32)

        return await self._beside.call(push)

    async def _serve(self, comm: Comm) -> None:
        steps = dict.fromkeys(range(comm.size), 0)
        working = comm.size - 1
        while working:
            rank, data = await comm.recv(None)
            if data.numel():
                await comm.post(rank, self._apply(rank, Payload(data), steps[rank]).view(torch.uint8))
                steps[rank] += 1
            else:
                working -= 1

    def _apply(self, rank: int, pushed: Payload, step: int) -> Tensor:
        stale = self._shared.version - self._seen[rank]
        self._stale, self._most = self._stale + stale, max(self._most, stale)
        context = self._context(rank, step)
        with self._shared.held() as x:
            self._channel.encoder.decode_add(pushed, self._layout, x, key=context.key)
        model, self._seen[rank] = self._shared.look()
        return model

    async def _end(self) -> None:
        if self.loop.runner.comm.rank == SERVER:
            await self._beside.join([self._serving], self.loop.transport.timeout)
            self._take(self._shared.snapshot())
        else:
            await self._beside.call(lambda comm: _post(comm, torch.empty(0, dtype=torch.uint8)))

    def _context(self, rank: int, step: int) -> Context:
        return Context(self.loop.runner.comm, self._layout, Key(self.loop.runner.seed, step, rank))

    def _model(self) -> Tensor:
        return torch.cat(self.loop.models())

    @torch.no_grad()
    def _take(self, model: Tensor) -> None:
        members = [one for some in self.loop.members for one in some]
        for one, piece in zip(members, model.split(self._layout.sizes), strict=True):
            one.parameter.copy_(piece.view(one.parameter.shape))


async def _post(comm: Comm, x: Tensor) -> None:
    await comm.post(SERVER, x)
