"""Together: the turns of thinwire.sim.turns for all workers at once, where what they wait for are collectives.

    gradients   t = max(backward ends, the last piece has ended) + the optimizer's step
    models      t = the last piece has ended, launched after the optimizer's step
    ways        the same, by fragments

Where nothing changes from step to step, a step that begins as the one before it began takes as long: the rest is
known, and is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast, final

import numpy as np

from thinwire.comm.stragglers import Constant
from thinwire.sim.crowd import COLLECTIVES, Crowd
from thinwire.sim.script import AVERAGE, Piece
from thinwire.sim.turns import Calendar
from thinwire.sim.wires import Wires

if TYPE_CHECKING:
    from thinwire.comm.network import Network
    from thinwire.comm.stragglers import Stragglers
    from thinwire.core.method import Method
    from thinwire.sim.costs import Costs
    from thinwire.sim.crowd import Array
    from thinwire.sim.load import Load
    from thinwire.sim.script import Script
    from thinwire.sync.delta import Delta

SAME = 1e-13  # of a step, by which two may differ and count as one


def fits(method: Method, script: Script, network: Network) -> bool:
    """Whether all ranks meet in every round, and wait for it in the step that launched it."""
    sync = method.sync
    late = bool(sync.staleness) or (sync.of.outer_loop and bool(cast("Delta", sync.of).delay))
    met = all(isinstance(phase, COLLECTIVES) for piece in script.pieces for phase in piece.phases)
    own = network.ranks_per_host == 1 and network.racks == 1  # every rank has its links to itself
    return met and own and not late and not method.exchange.before_step


@final
class Together:
    """The steps of `n` workers."""

    def __init__(self, method: Method, script: Script, load: Load, n: int, network: Network, costs: Costs) -> None:
        self.method, self.script, self.load, self.n = method, script, load, n
        self.crowd = Crowd(n, script.lanes, Wires(network, n), costs)
        self.now = np.zeros(n)
        of = method.sync.of
        self._calendar = Calendar(cast("Delta", of), method.sync.every) if of.outer_loop else None
        self._buckets = [
            [at for at, piece in enumerate(script.pieces) if piece.bucket == bucket]
            for bucket in range(len(script.launches))
        ]

    def run(self, steps: int, stragglers: Stragglers | None, seed: int) -> list[tuple[float, ...]]:
        """When each worker had ended each step."""
        ends: list[tuple[float, ...]] = []
        steady = (stragglers is None or isinstance(stragglers, Constant)) and not self.method.sync.of.models
        before: tuple[Array, float] | None = None
        number = 0
        while number < steps:
            start, sent = self.now.copy(), (self.crowd.wires.bytes, self.crowd.wires.messages, self.crowd.coded)
            self._step(number, self._factors(stragglers, number, seed))
            ends.append(tuple(self.now.tolist()))
            number += 1
            took, state = self.now - start, self._state()
            if steady and before is not None and np.abs(state - before[0]).max() <= SAME * took.max():
                self._repeat(steps - number, took, sent)
                ends += [tuple((self.now + k * took).tolist()) for k in range(1, steps - number + 1)]
                break
            before = state, 0.0
        self._end()
        return ends

    def _factors(self, stragglers: Stragglers | None, number: int, seed: int) -> Array:
        if stragglers is None:
            return np.ones(self.n)
        return np.array([stragglers.factor(rank, number, seed) for rank in range(self.n)])

    def _state(self) -> Array:
        """All that a step depends on, from the first worker's end on; what lies before that is over."""
        crowd, first = self.crowd, self.now.min()
        parts = (self.now, crowd.wires.sends, crowd.wires.receives, crowd.busy.ravel())
        found: Array = np.concatenate([np.maximum(part - first, 0.0) for part in parts])
        return found

    def _repeat(self, times: int, took: Array, sent: tuple[int, int, float]) -> None:
        wires = self.crowd.wires
        wires.bytes += times * (wires.bytes - sent[0])
        wires.messages += times * (wires.messages - sent[1])
        self.crowd.coded += times * (self.crowd.coded - sent[2])

    def _step(self, number: int, factor: Array) -> None:
        load, sync = self.load, self.method.sync
        computed, update = self.now + factor * load.computed, factor * load.update
        if not sync.of.models:
            launches = {
                at: self.now + factor * time
                for places, time in zip(self._buckets, self.script.launches, strict=True)
                for at in places
            }
            self.now = self._play(range(len(self.script.pieces)), launches, computed) + update
            return
        self.now = computed + update
        if self._calendar is None:
            if (number + 1) % sync.every == 0:
                self._exchange(range(len(self.script.pieces)))
            return
        due = self._calendar.due(number + 1)
        if due and cast("Delta", sync.of).period.hears_loss:
            done = self.crowd.play([Piece(-1, -1, (AVERAGE,))], [0], {0: self.now})
            self.now = np.maximum(self.now, done[0])
        self._exchange([at for fragment in due for at in self.script.of(fragment)])

    def _end(self) -> None:
        """A period that waited for the end of training has its round."""
        if self._calendar is not None and cast("Delta", self.method.sync.of).period.at_end:
            self._exchange(range(len(self.script.pieces)))

    def _exchange(self, places: Sequence[int]) -> None:
        if places:
            self.now = self._play(places, dict.fromkeys(places, self.now), self.now)

    def _play(self, places: Sequence[int], launches: dict[int, Array], least: Array) -> Array:
        ended = self.crowd.play(self.script.pieces, places, launches)
        found: Array = np.max([least, *ended.values()], axis=0)
        return found
