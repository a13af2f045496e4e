"""Neighbours: `Pairs` beside the training loop. Nobody waits for a rank that is slow to compute.

    active rank     asks a random neighbour after every `pace`-th step of the training loop
    passive rank    answers whenever it is asked

The exchange that a step of an active rank starts runs while the next gradient is computed. A step that would start
another one first waits until the last one has finished: at pace 1 there is one exchange per step, as in the paper,
and a rank is never more than one behind. The coroutines of the edges (`Beside`) and the training loop share the model
(`Shared`), which nobody holds while waiting for the network.

When an edge has been quiet for `beat` seconds, the active rank sends a byte over it. A time-out therefore means that
a rank hangs, and not that it computes for a long time or happened to ask other neighbours.

When an edge breaks in the middle of an exchange, the active rank has not moved, but the passive one may have.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, final

from thinwire.core.errors import PeerError
from thinwire.core.types import Context, Key
from thinwire.engine.beside import Beside, Box, BrokenEdge, Spawned

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.types import Layout
    from thinwire.engine.shared import Shared
    from thinwire.exchange.pairs import Pairs

T = TypeVar("T")
ASK, STOP = "ask", "stop"  # what the training loop tells an edge of an active rank


@final
class Neighbours:
    """Averages `shared` with the neighbours, from `start` to `stop`.

    Where `beside.gone` is a set, a neighbour that breaks off joins it and the others go on; otherwise it is a
    PeerError.
    """

    def __init__(
        self, exchange: Pairs, beside: Beside, shared: Shared, layout: Layout, *, seed: int = 0, pace: int = 1
    ) -> None:
        if pace < 1:
            raise ValueError(f"Neighbours(pace={pace}) never asks; write pace=1 for every step")
        comm = beside.comm
        exchange.check(comm.size)
        self.exchange, self.shared, self.layout, self._beside = exchange, shared, layout, beside
        self.rank, self.size = comm.rank, comm.size
        self.active = exchange.active(self.rank, self.size)
        self._seed, self._pace = seed, pace
        self._near = exchange.topology.around(self.rank, self.size).peers
        self._sent = dict.fromkeys(self._near, 0)  # messages so far on each edge; both ends count them
        self._orders: dict[int, Box] = {peer: beside.box() for peer in self._near}
        self._answers = beside.box()  # one word when an exchange has ended, well or not
        self._edges: dict[int, Spawned] = {}
        self._busy = False  # whether an exchange is due or under way
        self._asks = 0  # exchanges asked for so far
        self._stopping = False
        self._steps, self._stale, self._most, self._waited = 0, 0, 0, 0.0
        self._seen = shared.version  # version of the model that the gradient at hand is computed on

    def start(self) -> None:
        """Start the edges. Neighbours may start later."""
        life = self._ask if self.active else self._answer
        for peer in self._near:
            self._edges[peer] = self._beside.spawn(peer, lambda comm, peer=peer: life(comm, peer))  # type: ignore[misc]

    async def stepped(self, update: Tensor) -> Tensor:
        """Add the step that the training loop took; returns the model to go on with. Raises the error of an edge."""
        if self._stopping:
            raise RuntimeError("stepped() after stop(): the neighbours are gone; make other Neighbours")
        if not bool(update.isfinite().all()):
            raise FloatingPointError(f"step {self._steps} of rank {self.rank} is not finite")
        self._raise()
        stale = self.shared.add(update) - self._seen
        self._steps, self._stale, self._most = self._steps + 1, self._stale + stale, max(self._most, stale)
        if self.active and self._steps % self._pace == 0:
            begun = self._beside.now()
            if self._busy:
                await self._answers.take()
                self._busy = False
            self._raise()
            near = tuple(peer for peer in self._near if self._alive(peer))
            if near:
                self._busy = True
                self._orders[self.exchange.choose(Key(self._seed, self._asks, self.rank), self.rank, near)].put(ASK)
            self._asks += 1
            self._waited += self._beside.now() - begun
        x, self._seen = self.shared.look()
        return x

    async def rest(self) -> None:
        """Wait for the exchange that the last step has started."""
        if self._busy:
            await self._answers.take()
            self._busy = False
        self._raise()

    async def stop(self, timeout: float | None = None) -> Tensor:
        """End together with the neighbours; returns the last model.

        An active rank tells its neighbours that it ends. A passive one answers until all of them have said so. A
        neighbour that goes on for more than `timeout` seconds is a PeerError; None waits as long as it lives.
        """
        self._stopping = True
        for box in self._orders.values():
            box.put(STOP)
        ended = await self._beside.join(list(self._edges.values()), timeout)
        self._raise()
        if not ended:
            late = tuple(peer for peer in self._near if not self._edges[peer].ended)
            edges = ", ".join(f"{self.rank}-{peer}" for peer in late)
            raise PeerError(f"still open {timeout:g} s after the end of training: the edges {edges}", late)
        return self.shared.snapshot()

    def report(self) -> dict[str, float]:
        """Exchanges, how many of them gradients missed (mean, maximum), and seconds spent waiting."""
        return {
            "exchanges": self.shared.version,
            "staleness_mean": self._stale / self._steps if self._steps else 0.0,
            "staleness_max": self._most,
            "waited_s": self._waited,
        }

    def _raise(self) -> None:
        for edge in self._edges.values():
            if edge.failure is not None:
                raise edge.failure

    async def _ask(self, comm: Comm, peer: int) -> None:
        """The life of an edge of an active rank."""
        while self._alive(peer):
            word = await self._orders[peer].take(self._beside.beat)
            if word == ASK:
                try:
                    await self._talk(comm, peer, lambda there, ctx: self.exchange.ask(self.shared, there, ctx))
                finally:
                    self._answers.put(None)
            elif word == STOP:
                await self._talk(comm, peer, lambda there, ctx: self.exchange.greet(there, ctx, last=True))
                return
            else:
                await self._talk(comm, peer, self.exchange.greet)

    async def _answer(self, comm: Comm, peer: int) -> None:
        """The life of an edge of a passive rank."""
        while await self._talk(comm, peer, lambda there, ctx: self.exchange.answer(self.shared, there, ctx)):
            pass

    def _alive(self, peer: int) -> bool:
        return not self._beside.gone or peer not in self._beside.gone

    async def _talk(self, comm: Comm, peer: int, half: Callable[[int, Context], Coroutine[Any, Any, T]]) -> T | None:
        """Run one half of an exchange on the edge to `peer`; returns None if the edge broke and may do so."""
        pair = (min(self.rank, peer), max(self.rank, peer))
        key = self.exchange.on_edge(Key(self._seed, self._sent[peer], self.rank), *pair, self.size)
        ctx = Context(comm.sub(pair), self.layout, key)
        self._sent[peer] += 1
        try:
            return await half(pair.index(peer), ctx)
        except BrokenEdge as broken:
            if self._beside.gone is None:
                cause = broken.__cause__
                raise PeerError(f"the edge {self.rank}-{peer} broke: {cause}", (peer,)) from cause
            self._beside.gone.add(peer)
            if self._beside.dropped is not None:
                self._beside.dropped(peer, broken.__cause__)
            return None
