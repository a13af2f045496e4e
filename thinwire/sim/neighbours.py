"""Neighbours: the steps of all workers where models are exchanged with neighbours, message by message.

The clock does the same with coroutines, requests and answers (thinwire.sim.player); here calls follow one another, on
the same interfaces, at a fraction of the cost. The times are the same, but for ties:

    step     computes; launches its pieces when the first gradient is complete, or after the step; waits for them all
    piece    its passes and swaps, one after the other; then the next piece of its lane
    swap     a message to each peer; the piece goes on when they have left and one from each source has come

A rank that dies does nothing any more; its neighbours go on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, final

from thinwire.comm.network import Interfaces
from thinwire.core.outline import Code, Reduce, Swap, of_rank
from thinwire.engine.stats import SAMPLE_EVERY

if TYPE_CHECKING:
    from thinwire.comm.network import Network
    from thinwire.comm.stragglers import Stragglers
    from thinwire.core.method import Method
    from thinwire.sim.costs import Costs
    from thinwire.sim.load import Load
    from thinwire.sim.script import Script

Which = tuple[int, int, int]  # of a swap: its piece, where the piece goes on after it, and the round


def gossips(method: Method, script: Script, network: Network) -> bool:
    """Whether ranks meet their neighbours alone, and wait for them after every exchange."""
    sync = method.sync
    in_step = sync.of.models and not sync.of.outer_loop and sync.staleness == 0
    near = all(isinstance(phase, Code | Swap) for piece in script.pieces for phase in piece.phases)
    return in_step and near and network.ranks_per_host == 1


@final
class _Worker:
    """Where one rank is."""

    def __init__(self, rank: int, at_once: int) -> None:
        self.rank, self.number, self.round = rank, 0, 0
        self.open = 0  # pieces that have not ended
        self.stepped = False  # whether the optimizer's step is over, and only pieces are waited for
        self.busy = [0.0] * at_once  # until when the processor makes passes
        heapify(self.busy)
        self.measures = False  # whether it measures how far apart models are
        self.came: dict[Which, set[int]] = {}  # whose messages have come before it asked for them
        self.waits: dict[Which, tuple[set[int], float]] = {}  # for whose messages, and when its own have left
        self.order: dict[tuple[int, ...], list[int]] = {}  # in which it sends to its peers
        self.ends: list[float] = []


@final
class Neighbours:
    """The steps of `n` workers."""

    def __init__(self, method: Method, script: Script, load: Load, n: int, network: Network, costs: Costs) -> None:
        self._script, self._load, self._n, self._costs = script, load, n, costs
        self._every, self._early = method.sync.every, method.exchange.before_step
        self._gossips = method.exchange.scope == "neighbours"
        self._links = Interfaces(network, n)
        self._workers = [_Worker(rank, costs.at_once) for rank in range(n)]
        self._later: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []  # a heap
        self._now, self._made, self._met = 0.0, 0, 0
        self._dead: set[_Worker] = set()
        self._gone: set[int] = set()  # their ranks
        self.bytes = self.messages = 0
        self.coded = 0.0

    def run(
        self, steps: int, stragglers: Stragglers | None, seed: int, failures: Mapping[int, float]
    ) -> list[list[float]]:
        """When each worker had ended each of its steps, by worker."""
        self._steps, self._stragglers, self._seed = steps, stragglers, seed
        for rank, time in failures.items():
            self._at(time, self._die, rank)
        for worker in self._workers:
            self._at(0.0, self._begin, worker)
        later, dead = self._later, self._dead
        while later:
            self._now, _, call, args = heappop(later)
            if args[0] not in dead:
                call(*args)
        return [worker.ends for worker in self._workers]

    def _at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        self._made += 1
        heappush(self._later, (time, self._made, call, args))

    def _due(self, me: _Worker) -> bool:
        return (me.number + 1) % self._every == 0

    def _begin(self, me: _Worker) -> None:
        factor = 1.0 if self._stragglers is None else self._stragglers.factor(me.rank, me.number, self._seed)
        now, load, me.stepped = self._now, self._load, False
        first = self._script.first_gradient if self._early and self._due(me) else 0.0
        if self._early and self._due(me):
            me.open = len(self._script.pieces)
            self._at(now + factor * first, self._launch, me)
        self._at(now + factor * first + factor * (load.computed - first) + factor * load.update, self._step, me)

    def _step(self, me: _Worker) -> None:
        me.stepped = True
        if self._due(me) and not self._early:
            me.open = len(self._script.pieces)
            self._launch(me)
        elif not me.open:
            self._exchanged(me)

    def _launch(self, me: _Worker) -> None:
        for piece in range(min(self._script.lanes, len(self._script.pieces))):
            self._go_on(me, piece, 0)

    def _go_on(self, me: _Worker, piece: int, at: int) -> None:
        """Do the phases of a piece from `at` on, and what comes after it in its lane, until something takes time."""
        pieces, measure = self._script.pieces, self._script.measure
        while True:
            phases = pieces[piece].phases if piece < len(pieces) else measure.phases
            while at < len(phases):
                phase = phases[at]
                at += 1
                if isinstance(phase, Swap):
                    waits = self._swap(me, phase, (piece, at, me.round))
                else:
                    waits = self._pass(me, phase, piece, at)
                if waits:
                    return
            me.open -= 1
            piece, at = piece + self._script.lanes, 0
            if piece >= len(pieces):
                break
        if me.stepped and not me.open:
            self._exchanged(me)

    def _pass(self, me: _Worker, code: Any, piece: int, at: int) -> bool:
        """A pass; True if it takes time."""
        seconds = self._costs.seconds(code, me.rank)
        if not seconds:
            return False
        done = max(self._now, me.busy[0]) + seconds
        heapreplace(me.busy, done)
        self.coded += seconds
        self._at(done, self._go_on, me, piece, at)
        return True

    def _swap(self, me: _Worker, swap: Swap, which: Which) -> bool:
        """Messages to and from neighbours; True if that takes time."""
        peers, sources = swap.around(me.rank, me.round)
        if self._gone:
            peers, sources = (tuple(j for j in some if j not in self._gone) for some in (peers, sources))
        order = me.order.get(peers)
        if order is None:  # from the next rank on, as on the clock
            order = me.order[peers] = sorted(peers, key=lambda peer: (peer - me.rank) % self._n)
        nbytes, left, depart = of_rank(swap.nbytes, me.rank), self._now, self._links.depart
        for peer in order:
            reaches, left = depart(me.rank, peer, nbytes, self._now)
            self._at(reaches, self._land, me.rank, peer, nbytes, which)
        self.messages += len(peers)
        self.bytes += len(peers) * nbytes
        missing = set(sources)
        if which in me.came:
            missing -= me.came.pop(which)
        if missing:
            me.waits[which] = missing, left
        elif left > self._now:
            self._at(left, self._go_on, me, which[0], which[1])
        return bool(missing) or left > self._now

    def _land(self, source: int, to: int, nbytes: int, which: Which) -> None:
        done = self._links.land(to, nbytes, self._now, source)
        self._at(done, self._arrive, self._workers[to], source, which)

    def _arrive(self, me: _Worker, source: int, which: Which) -> None:
        if which not in me.waits:
            me.came.setdefault(which, set()).add(source)
            return
        missing, left = me.waits[which]
        missing.discard(source)
        if missing:
            return
        del me.waits[which]
        if left > self._now:
            self._at(left, self._go_on, me, which[0], which[1])
        else:
            self._go_on(me, which[0], which[1])

    def _die(self, rank: int) -> None:
        self._dead.add(self._workers[rank])
        self._gone.add(rank)
        for worker in self._workers:
            for which, (missing, left) in [*worker.waits.items()]:
                missing.discard(rank)
                if not missing:
                    del worker.waits[which]
                    self._at(max(left, self._now), self._go_on, worker, which[0], which[1])

    def _exchanged(self, me: _Worker) -> None:
        """Nothing is waited for any more in this step, or in the measurement that followed it."""
        if self._due(me) and not me.measures:
            me.round += 1
            if self._gossips and me.round % SAMPLE_EVERY == 0:
                self._measure(me)
                return
        me.measures = False
        self._end(me)

    def _measure(self, me: _Worker) -> None:
        """How far apart models are: by sums of all ranks, or, where ranks may be gone, each with each."""
        phases, n = self._script.measure.phases, self._n
        if isinstance(phases[0], Swap):
            me.measures, me.open = True, 1
            self._go_on(me, len(self._script.pieces), 0)
            return
        self._met += 1
        if self._met < n:
            return
        self._met, done = 0, self._now
        for phase in phases:
            assert isinstance(phase, Reduce)
            done = self._links.ring(range(n), phase.nbytes, done)
            self.messages += 2 * (n - 1) * n
            self.bytes += n * (2 * (n - 1) * phase.nbytes // n)
        for worker in self._workers:
            self._at(done, self._end, worker)

    def _end(self, me: _Worker) -> None:
        me.ends.append(self._now)
        me.number += 1
        if me.number < self._steps:
            self._at(self._now, self._begin, me)
