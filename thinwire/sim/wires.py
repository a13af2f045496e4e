"""Wires: the interfaces of all hosts as arrays, with the formulas of thinwire.comm.network; one rank per host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from thinwire.core.outline import Gather, Phase, Reduce, Scatter
from thinwire.sim.uplinks import Asked, Uplinks

if TYPE_CHECKING:
    from thinwire.comm.network import Network
    from thinwire.sim.arrays import Array, Index


class Bytes(NamedTuple):
    """What each rank sends and receives in a phase; and what it sends to other racks, and each rack from others."""

    away: Array
    comes: Array
    across: Array
    into: Array


NONE: Array = np.zeros(0)


@final
class Wires:
    """Until when each host sends and receives, and what has been sent."""

    def __init__(self, network: Network, n: int) -> None:
        self.n, self.latency = n, network.delay
        self.pace = np.array([1 / network.bytes_per_second(host) for host in range(n)])  # seconds per byte
        self.sends, self.receives = np.zeros(n), np.zeros(n)
        self.uplinks = Uplinks(network, n) if network.racks > 1 else None
        self.bytes = self.messages = 0
        self._sizes: dict[int, Bytes] = {}  # by the id of a phase

    @property
    def busy(self) -> list[Array]:
        """Until when each interface and uplink is."""
        links = [] if self.uplinks is None else [self.uplinks.ups, self.uplinks.downs]
        return [self.sends, self.receives, *links]

    def ask(self, phase: Phase, ranks: Index, times: Array, begins: Array, left: Array) -> None:
        """Ranks ask for a collective. When each begins to send and has sent is written into the arrays of all ranks,
        though what passes an uplink leaves when the collective closes.
        """
        if isinstance(phase, Reduce):
            return
        size = self._bytes(phase)
        starts = np.maximum(times, self.sends[ranks])
        self.sends[ranks] = starts + size.away[ranks] * self.pace[ranks]
        begins[ranks], left[ranks] = starts, self.sends[ranks]
        if self.uplinks is not None:
            self.uplinks.ask(Asked(ranks, times, starts, size.across[ranks], left))

    def close(self, phase: Phase, begins: Array, left: Array, now: float) -> Array:
        """All have asked; returns when each rank goes on."""
        n, uplinks = self.n, self.uplinks
        if uplinks is not None:
            uplinks.carry()
        if isinstance(phase, Reduce):
            self.messages += 2 * (n - 1) * n
            self.bytes += n * (2 * (n - 1) * phase.nbytes // n)
            if n == 1:
                return np.full(n, now)
            starts, pace = max(now, *(float(until.max()) for until in self.busy)), float(self.pace.max())
            if uplinks is not None:
                pace = max(pace, float(uplinks.share.max()))
                uplinks.ring(starts, 2 * (n - 1) * phase.nbytes / n)
            done = starts + 2 * (n - 1) * (self.latency + phase.nbytes / n * pace)
            self.sends[:] = self.receives[:] = done
            return np.full(n, done)
        size = self._bytes(phase)
        self.messages += n * (n - 1)
        self.bytes += int(size.away.sum())
        if n == 1:
            return np.full(n, now)
        first, last = self.latency - _best_elsewhere(-begins), _best_elsewhere(left) + self.latency
        self.receives = np.maximum(first, self.receives) + size.comes * self.pace
        done_by: Array = np.maximum(np.maximum(left, last), self.receives)
        if uplinks is not None:
            done_by = np.maximum(done_by, uplinks.land(first, size.into))
        return done_by

    def _bytes(self, phase: Phase) -> Bytes:
        found = self._sizes.get(id(phase))
        if found is None:
            assert isinstance(phase, Gather | Scatter)
            each = np.broadcast_to(np.asarray(phase.nbytes, dtype=np.float64), (self.n,))
            rest, own = each.sum() - each, (self.n - 1) * each
            away, comes = (own, rest) if isinstance(phase, Gather) else (rest, own)
            across, into = (NONE, NONE) if self.uplinks is None else self.uplinks.across(phase, each)
            found = self._sizes[id(phase)] = Bytes(away, comes, across, into)
        return found


def _best_elsewhere(values: Array) -> Array:
    """For each rank, the largest value of another one."""
    top = int(values.argmax())
    best = float(values[top])
    out = np.full(len(values), best)
    out[top] = np.delete(values, top).max()
    return out
