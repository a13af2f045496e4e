"""Together: the turns of thinwire.sim.turns for all workers at once, where what they wait for are collectives.

    gradients   t = max(backward ends, the last piece has ended) + the optimizer's step
    models      t = the last piece has ended, launched after the optimizer's step
    ways        the same, by fragments

Where nothing changes from step to step, a step that begins as the one before it began takes as long: the rest is
known, and is not computed. When a rank has died, the others wait for it in the next collective, for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast, final

import numpy as np

from thinwire.comm.stragglers import Constant
from thinwire.core.outline import Gather, Reduce, Scatter
from thinwire.sim.crowd import COLLECTIVES, Crowd
from thinwire.sim.script import AVERAGE, START, Piece
from thinwire.sim.turns import Calendar
from thinwire.sim.wires import Wires

if TYPE_CHECKING:
    from thinwire.comm.network import Network
    from thinwire.comm.stragglers import Stragglers
    from thinwire.core.method import Method
    from thinwire.sim.arrays import Array
    from thinwire.sim.costs import Costs
    from thinwire.sim.load import Load
    from thinwire.sim.script import Script
    from thinwire.sync.delta import Delta

WORDS: dict[type, str] = {Reduce: "all_reduce", Gather: "all_gather", Scatter: "all_to_all"}
SAME = 1e-13  # of a step, by which two may differ and count as one


def fits(method: Method, script: Script, network: Network) -> bool:
    """Whether all ranks meet in every round, and wait for it in the step that launched it."""
    sync = method.sync
    late = bool(sync.staleness) or (sync.of.outer_loop and bool(cast("Delta", sync.of).delay))
    met = all(isinstance(phase, COLLECTIVES) for piece in script.pieces for phase in piece.phases)
    own = network.ranks_per_host == 1  # every rank has its interfaces to itself
    return met and own and not late and not method.exchange.before_step


@final
class Together:
    """The steps of `n` workers."""

    def __init__(
        self,
        method: Method,
        script: Script,
        load: Load,
        n: int,
        network: Network,
        costs: Costs,
        failures: Mapping[int, float],
    ) -> None:
        self.method, self.script, self.load, self.n = method, script, load, n
        self._failures = failures
        self._deaths = np.array([failures.get(rank, np.inf) for rank in range(n)])
        self.crowd = Crowd(n, script.lanes, Wires(network, n), costs, self._deaths if failures else None)
        self.now = np.zeros(n)
        of = method.sync.of
        self._calendar = Calendar(cast("Delta", of), method.sync.every) if of.outer_loop else None
        self._begun = False  # the first round of an outer loop
        self._buckets = [
            [at for at, piece in enumerate(script.pieces) if piece.bucket == bucket]
            for bucket in range(len(script.launches))
        ]

    def run(self, steps: int, stragglers: Stragglers | None, seed: int) -> list[tuple[float, ...]]:
        """When each worker had ended each step that all living ones have ended."""
        ends: list[tuple[float, ...]] = []
        unlike = not (stragglers is None or isinstance(stragglers, Constant)) or self.method.sync.of.models
        before: Array | None = None
        for number in range(steps):
            start, sent = self.now.copy(), (self.crowd.wires.bytes, self.crowd.wires.messages, self.crowd.coded)
            self._step(number, self._factors(stragglers, number, seed))
            if self.crowd.waits:
                return ends
            ends.append(tuple(np.where(self.now < self._deaths, self.now, np.nan).tolist()))
            if unlike or self._failures:
                continue
            took, state = self.now - start, self._state()
            if before is not None and np.abs(state - before).max() <= SAME * took.max():
                left = steps - number - 1
                self._repeat(left, took, sent)
                ends += [tuple((self.now + k * took).tolist()) for k in range(1, left + 1)]
                break
            before = state
        self._end()
        return ends

    @property
    def stopped(self) -> str:
        """Who died and who waits, where that ended training, in the words of the clock."""
        stuck = [
            f"rank {r} waits in {WORDS[type(w)]}" for r, w in self.crowd.waits.items() if r not in self._failures
        ]
        who = " and ".join(f"rank {rank} died at {time:.9g} s" for rank, time in sorted(self._failures.items()))
        return "" if not stuck else f"{who}; " + "; ".join(sorted(stuck)[:3])

    def _factors(self, stragglers: Stragglers | None, number: int, seed: int) -> Array:
        if stragglers is None:
            return np.ones(self.n)
        return np.array([stragglers.factor(rank, number, seed) for rank in range(self.n)])

    def _state(self) -> Array:
        """All that a step depends on, from the first worker's end on; what lies before that is over."""
        crowd, first = self.crowd, self.now.min()
        parts = (self.now, *crowd.wires.busy, crowd.busy.ravel())
        found: Array = np.concatenate([np.maximum(part - first, 0.0) for part in parts])
        return found

    def _repeat(self, times: int, took: Array, sent: tuple[int, int, float]) -> None:
        wires = self.crowd.wires
        wires.bytes += times * (wires.bytes - sent[0])
        wires.messages += times * (wires.messages - sent[1])
        self.crowd.coded += times * (self.crowd.coded - sent[2])

    def _step(self, number: int, factor: Array) -> None:
        load, sync, pieces = self.load, self.method.sync, self.script.pieces
        computed, update = self.now + factor * load.computed, factor * load.update
        if not sync.of.models:
            launches = {
                at: self.now + factor * time
                for places, time in zip(self._buckets, self.script.launches, strict=True)
                for at in places
            }
            self.now = self._wait(pieces, range(len(pieces)), launches, computed) + update
            return
        self.now = computed + update
        if self._calendar is None:
            if (number + 1) % sync.every == 0:
                self._exchange(range(len(self.script.pieces)))
            return
        due = self._calendar.due(number + 1)
        if due:
            self._begin()
        if due and not self.crowd.waits and cast("Delta", sync.of).period.hears_loss:
            self.now = self._wait([Piece(-1, -1, (AVERAGE,))], [0], {0: self.now}, self.now)
            if self.crowd.waits:
                return
        if not self.crowd.waits:
            self._exchange([at for fragment in due for at in self.script.of(fragment)])

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.now = self._wait([Piece(-1, -1, (START,))], [0], {0: self.now}, self.now)

    def _end(self) -> None:
        """A period that waited for the end of training has its round."""
        if self._calendar is not None and cast("Delta", self.method.sync.of).period.at_end:
            self._begin()
            self._exchange(range(len(self.script.pieces)))

    def _exchange(self, places: Sequence[int]) -> None:
        if places:
            self.now = self._wait(self.script.pieces, places, dict.fromkeys(places, self.now), self.now)

    def _wait(
        self, pieces: Sequence[Piece], places: Sequence[int], launches: dict[int, Array], least: Array
    ) -> Array:
        """When all of these pieces have ended, on each rank."""
        ends = self.crowd.play(pieces, places, launches)
        found: Array = np.max([least, *ends.values()], axis=0)
        return found
