"""AsyncPairs: `Pairs` in threads beside the training loop. Nobody waits for a rank that is slow to compute.

    active rank     asks a random neighbour after every `pace`-th step of the training loop
    passive rank    answers whenever it is asked

The exchange that a step of an active rank starts runs while the next gradient is computed. A step that would start
another one first waits until the last one has finished: at pace 1 there is one exchange per step, as in the paper,
and a rank is never more than one behind. The threads and the training loop share the model (`Shared`); its lock is
never held while a thread waits for the network.

Each edge has a process group of its own, because gloo closes all connections of a group when one receive exceeds its
time-out. Each edge also has a thread of its own: a receive from one neighbour ends when that connection closes,
whereas a receive from anybody would not notice, and a neighbour that hangs must not silence the other edges.

When an edge has been quiet for `beat` seconds, the active rank sends a byte over it. A time-out therefore means that
a rank hangs, and not that it computes for a long time or happened to ask other neighbours.

When an edge breaks in the middle of an exchange, the active rank has not moved, but the passive one may have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch.distributed as dist

from thinwire.core.errors import PeerError
from thinwire.core.types import Context, Key
from thinwire.engine import groups

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.comm.processes import Processes
    from thinwire.core.types import Layout
    from thinwire.engine.shared import Shared
    from thinwire.exchange.pairs import Pairs

T = TypeVar("T")


def edges_of(exchange: Pairs, n: int, timeout: float) -> groups.Wanted:
    """The process groups that `AsyncPairs` needs: one per edge."""
    exchange.check(n)
    return groups.Wanted(1, tuple(exchange.edges(n)), timeout, "gloo")


def edge_drivers(lent: groups.Lent, exchange: Pairs) -> list[Processes]:
    """The drivers that `AsyncPairs` talks through: one per edge of this rank.

    A neighbour that does not answer for the time-out of the groups is an error; one that has died is noticed at once.
    """
    rank, n = dist.get_rank(lent.parent), dist.get_world_size(lent.parent)
    edges = len(exchange.topology.around(rank, n).peers)
    return [lent.driver(0) for _ in range(max(1, edges))]


@final
class AsyncPairs:
    """Averages `shared` with the neighbours, from `start` to `stop`.

    With a set as `gone`, a neighbour that breaks off joins it and the others go on; with None it is a PeerError.
    """

    def __init__(
        self,
        exchange: Pairs,
        drivers: Sequence[Processes],
        shared: Shared,
        layout: Layout,
        *,
        seed: int = 0,
        pace: int = 1,
        beat: float = 60.0,
        gone: set[int] | None = None,
    ) -> None:
        if pace < 1:
            raise ValueError(f"AsyncPairs(pace={pace}) never asks; write pace=1 for every step")
        comm = drivers[0].comm
        exchange.check(comm.size)
        self.exchange, self.shared, self.layout = exchange, shared, layout
        self.rank, self.size = comm.rank, comm.size
        self.active = exchange.active(self.rank, self.size)
        self._drivers, self._seed, self._pace, self._beat, self._gone = list(drivers), seed, pace, beat, gone
        self._near = exchange.topology.around(self.rank, self.size).peers
        if len(drivers) < len(self._near):
            raise ValueError(
                f"rank {self.rank} has {len(self._near)} neighbours and needs a driver for each; got {len(drivers)}: "
                "write AsyncPairs(exchange, edge_drivers(lent, exchange), ...)"
            )
        self._sent = dict.fromkeys(self._near, 0)  # messages so far on each edge; both ends count them
        self._threads: list[threading.Thread] = []
        self._turn = threading.Condition()  # guards the five below
        self._asked: int | None = None  # the neighbour with which an exchange is due or under way
        self._asks = 0  # exchanges asked for so far
        self._stopping = False
        self._error: Exception | None = None
        self._open = set(self._near)  # neighbours that a thread still talks to
        self._steps, self._stale, self._most, self._waited = 0, 0, 0, 0.0
        self._seen = shared.version  # version of the model that the gradient at hand is computed on

    def start(self) -> None:
        """Start the threads. Neighbours may start later."""
        life = self._ask if self.active else self._answer
        for driver, peer in zip(self._drivers, self._near, strict=False):
            self._spawn(lambda driver=driver, peer=peer: life(driver, peer), peer)  # type: ignore[misc]

    def stepped(self, update: Tensor) -> Tensor:
        """Add the step that the training loop took; returns the model to go on with. Raises the error of a thread."""
        if self._stopping:
            raise RuntimeError("stepped() after stop(): the neighbours are gone; make another AsyncPairs")
        if not bool(update.isfinite().all()):
            raise FloatingPointError(f"step {self._steps} of rank {self.rank} is not finite")
        self._raise()
        stale = self.shared.add(update) - self._seen
        self._steps, self._stale, self._most = self._steps + 1, self._stale + stale, max(self._most, stale)
        if self.active and self._steps % self._pace == 0:
            begun = time.perf_counter()
            with self._turn:
                self._turn.wait_for(lambda: self._asked is None or self._error is not None)
                near = self._alive()
                if near:
                    self._asked = self.exchange.choose(Key(self._seed, self._asks, self.rank), self.rank, near)
                self._asks += 1
                self._turn.notify_all()
            self._waited += time.perf_counter() - begun
            self._raise()
        x, self._seen = self.shared.look()
        return x

    def stop(self, timeout: float | None = None) -> Tensor:
        """End together with the neighbours; returns the last model.

        An active rank tells its neighbours that it ends. A passive one answers until all of them have said so. A
        neighbour that goes on for more than `timeout` seconds is a PeerError; None waits as long as it lives.
        """
        with self._turn:
            self._stopping = True
            self._turn.notify_all()
        until = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        self._raise()
        if any(thread.is_alive() for thread in self._threads):
            late = tuple(sorted(self._open))
            edges = ", ".join(f"{self.rank}-{peer}" for peer in late)
            raise PeerError(f"still open {timeout:g} s after the end of training: the edges {edges}", late)
        return self.shared.snapshot()

    def report(self) -> dict[str, float]:
        """Exchanges, how many of them gradients missed (mean, maximum), seconds spent waiting, and what was sent."""
        return {
            "exchanges": self.shared.version,
            "staleness_mean": self._stale / self._steps if self._steps else 0.0,
            "staleness_max": self._most,
            "waited_s": self._waited,
            "bytes_sent": sum(driver.traffic.bytes for driver in self._drivers),
            "messages": sum(driver.traffic.messages for driver in self._drivers),
        }

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _spawn(self, work: Callable[[], None], peer: int) -> None:
        def run() -> None:
            failed: Exception | None = None
            try:
                work()
            except Exception as error:  # whatever it was, the training loop raises it
                failed = error
            with self._turn:
                self._error = self._error or failed
                self._open.discard(peer)
                if self._asked == peer:
                    self._asked = None
                self._turn.notify_all()

        self._threads.append(threading.Thread(target=run, name=f"thinwire-pairs-{peer}", daemon=True))
        self._threads[-1].start()

    def _ask(self, driver: Processes, peer: int) -> None:
        """The life of a thread of an active rank."""
        spoken = time.monotonic()
        while peer in self._alive():
            with self._turn:
                self._turn.wait_for(
                    lambda: self._asked == peer or self._stopping, max(0.01, spoken + self._beat - time.monotonic())
                )
                due, stopping = self._asked == peer, self._stopping
            if due:
                self._talk(driver, peer, lambda there, ctx: self.exchange.ask(self.shared, there, ctx))
                with self._turn:
                    self._asked = None
                    self._turn.notify_all()
            elif stopping:
                self._talk(driver, peer, lambda there, ctx: self.exchange.greet(there, ctx, last=True))
                return
            else:
                self._talk(driver, peer, self.exchange.greet)
            spoken = time.monotonic()

    def _answer(self, driver: Processes, peer: int) -> None:
        """The life of a thread of a passive rank."""
        while self._talk(driver, peer, lambda there, ctx: self.exchange.answer(self.shared, there, ctx)):
            pass

    def _alive(self) -> tuple[int, ...]:
        return tuple(peer for peer in self._near if not self._gone or peer not in self._gone)

    def _talk(self, driver: Processes, peer: int, half: Callable[[int, Context], Coroutine[Any, Any, T]]) -> T | None:
        """Run one half of an exchange on the edge to `peer`; returns None if the edge broke and may do so."""
        pair = (min(self.rank, peer), max(self.rank, peer))
        key = self.exchange.on_edge(Key(self._seed, self._sent[peer], self.rank), *pair, self.size)
        ctx = Context(driver.comm.sub(pair), self.layout, key)
        self._sent[peer] += 1
        try:
            return _run(driver, half(pair.index(peer), ctx))
        except _EdgeError as broken:
            if self._gone is None:
                cause = broken.__cause__
                raise PeerError(f"the edge {self.rank}-{peer} broke: {cause}", (peer,)) from cause
            self._gone.add(peer)
            return None


class _EdgeError(Exception):
    """The network failed. Errors in encoding and decoding are not of this kind."""


def _run(driver: Processes, coroutine: Coroutine[Any, Any, T]) -> T:
    answer: Any = None
    try:
        while True:
            try:
                request = coroutine.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                answer = driver.answer(request)
            except RuntimeError as error:
                raise _EdgeError from error
    finally:
        coroutine.close()
