"""Wires: the interfaces of all hosts as arrays, with the formulas of thinwire.comm.network; one rank per host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from thinwire.core.outline import Gather, Phase, Reduce, Scatter

if TYPE_CHECKING:
    from thinwire.comm.network import Network

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Index: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"


@final
class Wires:
    """Until when each host sends and receives, and what has been sent."""

    def __init__(self, network: Network, n: int) -> None:
        self.n, self.latency = n, network.delay
        self.pace = np.array([1 / network.bytes_per_second(host) for host in range(n)])  # seconds per byte
        self.sends, self.receives = np.zeros(n), np.zeros(n)
        self.bytes = self.messages = 0
        self._sizes: dict[int, tuple[Array, Array]] = {}  # what each rank sends and receives, by the id of a phase

    def ask(self, phase: Phase, ranks: Index, times: Array) -> tuple[Array, Array]:
        """Ranks ask for a collective; returns when each begins to send and has sent."""
        if isinstance(phase, Reduce):
            return times, times
        away, _ = self._away(phase)
        begins = np.maximum(times, self.sends[ranks])
        left = begins + away[ranks] * self.pace[ranks]
        self.sends[ranks] = left
        return begins, left

    def close(self, phase: Phase, bursts: tuple[Array, Array], now: float) -> Array:
        """All have asked; returns when each rank goes on."""
        n = self.n
        if isinstance(phase, Reduce):
            self.messages += 2 * (n - 1) * n
            self.bytes += n * (2 * (n - 1) * phase.nbytes // n)
            if n == 1:
                return np.full(n, now)
            starts = max(now, float(self.sends.max()), float(self.receives.max()))
            done = starts + 2 * (n - 1) * (self.latency + phase.nbytes / n * float(self.pace.max()))
            self.sends[:] = self.receives[:] = done
            return np.full(n, done)
        away, comes = self._away(phase)
        self.messages += n * (n - 1)
        self.bytes += int(away.sum())
        if n == 1:
            return np.full(n, now)
        begins, left = bursts
        first, last = -_best_elsewhere(-begins), _best_elsewhere(left)
        self.receives = np.maximum(self.latency + first, self.receives) + comes * self.pace
        done_by: Array = np.maximum(np.maximum(left, last + self.latency), self.receives)
        return done_by

    def _away(self, phase: Phase) -> tuple[Array, Array]:
        """Bytes that each rank sends and receives."""
        found = self._sizes.get(id(phase))
        if found is None:
            assert isinstance(phase, Gather | Scatter)
            each = np.broadcast_to(np.asarray(phase.nbytes, dtype=np.float64), (self.n,))
            rest, own = each.sum() - each, (self.n - 1) * each
            found = self._sizes[id(phase)] = (own, rest) if isinstance(phase, Gather) else (rest, own)
        return found


def _best_elsewhere(values: Array) -> Array:
    """For each rank, the largest value of another one."""
    top = int(values.argmax())
    best = float(values[top])
    out = np.full(len(values), best)
    out[top] = np.delete(values, top).max()
    return out
