"""Served: a parameter server without rounds. A worker's step is added to the server's model when it arrives (ASGD).

    worker    u = C(x_after - x_before), sent to rank 0; then x = the model that comes back
    server    x = x + u, in the order of arrival; answers with x

Rank 0 serves beside its own training (`engine/serving.py`). With plain SGD u = -lr g: steps are taken with gradients
that are as old as `stats()["staleness_mean"]` of rank 0 says.

Reference: Dean, Corrado, Monga, et al., "Large scale distributed deep networks", NeurIPS 2012, Downpour SGD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.types import Context, Key
from thinwire.engine.events import Ends, StepBegins, StepEnds
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.serving import Serving
from thinwire.exchange.server import SERVER

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.payload import Payload


@final
class Served(Schedule):
    """The worker's half; `_server` is there on rank 0 alone."""

    def begin(self) -> None:
        """Start the server on rank 0."""
        loop, comm = self.loop, self.loop.runner.comm
        self._channel, self._layout = loop.method.exchange.channels[0], loop.layout
        self._memory = self._channel.memory.init(loop.model())
        self._beside = loop.transport.beside([])
        self._server: Serving | None = None
        self._step = 0  # as the server counts them
        if comm.rank == SERVER:
            self._server = Serving(self._channel, loop.model(), self._layout, loop.runner.seed, comm.size)
            self._serving = self._beside.spawn(SERVER, self._server.serve)

    async def run(self) -> None:
        """Step, push, pull."""
        loop = self.loop
        while not isinstance(await loop.next(StepBegins, Ends), Ends):
            loop.skipping.look()
            before = loop.model()
            await loop.next(StepEnds)
            key = Key(loop.runner.seed, self._step, loop.runner.comm.rank)
            ctx = Context(loop.runner.comm, self._layout, key)
            pushed = self._channel.send(loop.model() - before, self._memory, ctx)
            assert pushed is not None
            loop.set(await self._push(pushed))
            self._step += 1
            loop.runner.telemetry.stats.elements += self._layout.numel
            loop.runner.end_round()
        await self._end()

    async def save(self) -> dict[str, Any]:
        """Refuse: at no time between steps do all ranks have a common state."""
        raise ValueError(
            "a server without rounds has no checkpoint; write torch.save(model.state_dict(), ...) on rank 0"
        )

    def report(self) -> dict[str, float]:
        """The server's figures."""
        return {} if self._server is None else self._server.report()

    async def _push(self, pushed: Payload) -> Tensor:
        if self._server is not None:
            return self._server.add(SERVER, pushed)

        async def push(comm: Comm) -> Tensor:
            await comm.post(SERVER, pushed.data)
            return (await comm.recv(SERVER))[1].view(torch.float32)

        return await self._beside.call(push)

    async def _end(self) -> None:
        if self._server is not None:
            await self._beside.join([self._serving], self.loop.transport.timeout)
            self.loop.set(self._server.shared.snapshot())
        else:
            await self._beside.call(_last)


async def _last(comm: Comm) -> None:
    """Returns when the server has it, so that nothing is left on the way."""
    await comm.send(SERVER, torch.empty(0, dtype=torch.uint8))
