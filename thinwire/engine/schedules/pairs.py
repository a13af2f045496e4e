"""Pairs: the training loop adds its steps to a model that others average with the neighbours' meanwhile (AD-PSGD).

After every optimizer step the parameters take the values that this model has by then. Nobody waits for a slower rank,
but the end waits until the neighbours have ended too. In real processes the order of arrivals does not repeat, so
neither does a resumed run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, cast, final

import torch

from thinwire.comm.processes import EdgeError
from thinwire.core.errors import PeerError
from thinwire.engine.events import Ends, Idle, StepBegins, StepEnds
from thinwire.engine.neighbours import Neighbours
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.schedules.words import Word, say
from thinwire.engine.shared import Shared

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.loop import Loop
    from thinwire.exchange.pairs import Pairs as PairsExchange


@final
class Pairs(Schedule):
    """Steps into a shared model."""

    looks_at_gradients = True
    apart = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        loop.extra("model")
        self._layout = loop.layout
        self._neighbours: Neighbours | None = None

    def begin(self) -> None:
        """Share the common model, and start averaging it."""
        loop = self.loop
        exchange = cast("PairsExchange", loop.method.exchange)  # `asynchronous` says so
        beside = loop.transport.beside(exchange.edges(loop.runner.comm.size))
        self._neighbours = Neighbours(
            exchange,
            beside,
            Shared(self.loop.model()),
            self._layout,
            seed=loop.runner.seed,
            pace=loop.method.sync.every,
        )
        beside.farewell = self._stop
        self._neighbours.start()

    async def run(self) -> None:
        """Add every step that is taken outside no_sync blocks, with those inside before it; at the end, the rest."""
        loop = self.loop
        before = self.loop.model()  # which lacks the steps that have not been added yet, and what was written since
        while True:
            event = await loop.next(StepBegins, Idle, Ends)
            assert self._neighbours is not None
            if isinstance(event, Idle):  # this rank's edges go on answering, so that others need nothing else of it
                self._neighbours.shared.add(self.loop.model() - before)
                await self._neighbours.rest()
                loop.others = bool((await loop.transport.launch(say(Word(trains=0)))).trains)
                self.loop.set(self._neighbours.shared.snapshot())
                before = self.loop.model()
                continue
            if isinstance(event, Ends):
                self._neighbours.shared.add(self.loop.model() - before)
                self.loop.set(await self._stop())
                return
            loop.skipping.look()
            await loop.next(StepEnds)
            if loop.quiet():
                continue
            self.loop.set(await self._stepped(self.loop.model() - before))
            before = self.loop.model()
            loop.runner.telemetry.stats.elements += self._layout.numel
            loop.runner.end_round()

    @torch.no_grad()
    def restart(self) -> None:
        """The neighbours average the common model from here on."""
        assert self._neighbours is not None
        with self._neighbours.shared.held() as x:
            x.copy_(self.loop.model())

    async def save(self) -> dict[str, Any]:
        """Put the model of this rank into the buckets' `extra`; there is nothing else to save."""
        for bucket, model in zip(self.loop.buckets, self.loop.models(), strict=True):
            bucket.extra["model"].copy_(model)
        return await super().save()

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on from the saved model of this rank, or from the mean of all on another number of ranks."""
        assert self._neighbours is not None
        model = torch.cat([bucket.extra["model"] for bucket in self.loop.buckets])
        with self._neighbours.shared.held() as x:
            x.copy_(model)
        self.loop.set(model)

    def report(self) -> dict[str, float]:
        """The figures of `Neighbours`, such as exchanges and the staleness of gradients."""
        return {} if self._neighbours is None else self._neighbours.report()

    async def _stepped(self, update: Tensor) -> Tensor:
        """Add a step."""
        assert self._neighbours is not None
        self.loop.transport.check()
        return await self._explained(self._neighbours.stepped(update))

    async def _stop(self) -> Tensor:
        assert self._neighbours is not None
        return await self._explained(self._neighbours.stop(self.loop.transport.timeout))

    async def _explained(self, work: Awaitable[Tensor]) -> Tensor:
        """When an edge breaks, all ranks are told, since those who are far away wait for nobody.

        It may have broken because the neighbour has given up in its turn, so that the roll says who is gone.
        """
        try:
            return await work
        except PeerError as error:
            raise self.loop.transport.explain(EdgeError(str(error), error.ranks)) from error
