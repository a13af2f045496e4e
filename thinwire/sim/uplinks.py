"""Uplinks: what the hosts of a rack share, as arrays, with the formulas of thinwire.comm.network; one rank per host.

Messages queue at an uplink in the order in which ranks have asked. A crowd does not follow its ranks in that order:
what they ask for is noted, and passes the uplinks when a collective closes. Before that nobody need know when it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from thinwire.core.outline import Gather

if TYPE_CHECKING:
    from thinwire.comm.network import Network
    from thinwire.core.outline import Scatter
    from thinwire.sim.arrays import Array, Index


class Asked(NamedTuple):
    """What some ranks want to send to other racks, and `left`, where it is written when it has left."""

    ranks: Index
    times: Array
    begins: Array  # when they begin to send
    nbytes: Array
    left: Array  # of all ranks


@final
class Uplinks:
    """Until when the links of each rack are busy, in both directions."""

    def __init__(self, network: Network, n: int) -> None:
        self.n = n
        self.rack = np.arange(n) * network.racks // n  # of each rank
        self.members = np.bincount(self.rack).astype(np.float64)
        self._first = np.searchsorted(self.rack, np.arange(network.racks))  # rank of each rack
        rates = np.array([network.bytes_per_second(host) for host in range(n)])
        self.share = network.oversubscription / np.bincount(self.rack, weights=rates)  # seconds per byte
        self.ups, self.downs = np.zeros(network.racks), np.zeros(network.racks)
        self._asked: list[Asked] = []

    def ask(self, asked: Asked) -> None:
        """Note what some ranks send to other racks."""
        self._asked.append(asked)

    def carry(self) -> None:
        """Let all that was asked for pass, in the order of asking."""
        asked, self._asked = self._asked, []
        if not asked:
            return
        times, begins, nbytes = (np.concatenate([one[at] for one in asked]) for at in (1, 2, 3))
        racks = self.rack[np.concatenate([one.ranks for one in asked])]
        order = np.lexsort((times, racks))
        rack = racks[order]
        place = np.arange(len(rack)) - np.searchsorted(rack, rack)  # in the queue of its rack
        shape = len(self.ups), int(place.max()) + 1
        starts, costs = np.full(shape, -np.inf), np.zeros(shape)  # what is no message changes nothing
        starts[rack, place] = np.where(nbytes > 0, begins, -np.inf)[order]
        costs[rack, place] = nbytes[order] * self.share[rack]
        # Each leaves at max(its start, when the one before it has left) + its cost; below, without a loop.
        spent = costs.cumsum(axis=1)
        leaves = spent + np.maximum(np.maximum.accumulate(starts - (spent - costs), axis=1), self.ups[:, None])
        self.ups = leaves[:, -1]
        found = np.empty(len(rack))
        found[order] = leaves[rack, place]
        ends = np.where(nbytes > 0, found, -np.inf)
        for one, late in zip(asked, np.split(ends, np.cumsum([len(one.ranks) for one in asked])[:-1]), strict=True):
            one.left[one.ranks] = np.maximum(one.left[one.ranks], late)

    def ring(self, starts: float, nbytes: float) -> None:
        """Each link carries `nbytes` of a ring that starts now."""
        self.ups = starts + nbytes * self.share
        self.downs = self.ups.copy()

    def land(self, reaches: Array, nbytes: Array) -> Array:
        """When each rank's rack has received `nbytes` of other racks; the first of them reaches each rank then."""
        starts = np.maximum(np.minimum.reduceat(reaches, self._first), self.downs)
        self.downs = np.where(nbytes > 0, starts + nbytes * self.share, self.downs)
        done: Array = np.where(nbytes > 0, self.downs, -np.inf)[self.rack]
        return done

    def across(self, phase: Gather | Scatter, each: Array) -> tuple[Array, Array]:
        """Bytes that each rank sends to other racks, and that each rack receives from them."""
        own = np.bincount(self.rack, weights=each).astype(np.float64)
        others = self.n - self.members
        if isinstance(phase, Gather):
            return each * others[self.rack], self.members * (each.sum() - own)
        return (each.sum() - own)[self.rack], own * others
