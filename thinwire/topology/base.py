"""Topology: who is whose neighbour, and with which weight, as a mixing matrix W for n ranks.

W[i, j] is the weight with which rank i takes what rank j sends. W is symmetric and its rows sum to one. Where the
graph is `directed` its columns sum to one instead: what a rank gives away adds up to what it had, as push-sum needs.
A topology is a value without a size: the same `Ring()` serves 4 ranks and 64. Where W changes from step to step,
`period` says after how many it repeats.

>>> from thinwire.topology import Ring
>>> Ring().around(0, n=8)
Around(own=0.333..., sources={1: 0.333..., 7: 0.333...}, peers=(1, 7))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from thinwire.core.config import Config
from thinwire.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


class Around(NamedTuple):
    """What one rank sees of W in one step."""

    own: float  # W[i, i]
    sources: dict[int, float]  # W[i, j] by j, for the ranks that i takes from
    peers: tuple[int, ...]  # the ranks that take from i


class Topology(Config, ABC):
    """Base of the graphs. Subclasses are frozen dataclasses and final, and write `matrix`."""

    directed: bool = False  # a fact of the class, or a field
    """Whether W may be asymmetric: i may take from j without j taking from i."""

    @property
    def size(self) -> int | None:
        """The only number of ranks that it is for; None where it fits any."""
        return None

    @abstractmethod
    def matrix(self, n: int, step: int = 0) -> Tensor:
        """The W of n ranks in a step, float64."""

    def period(self, n: int) -> int | None:
        """After how many steps W repeats: 1 where it never changes, None where it never repeats."""
        return 1

    def mean_square(self, n: int) -> float | None:
        """Second eigenvalue of E[W'W] where W is drawn anew each step and the closed form is known."""
        return None

    def around(self, rank: int, n: int, step: int = 0) -> Around:
        """The neighbours of a rank in a step."""
        period = self.period(n)
        return _rows(self, n, step % period if period else step)[rank]


@lru_cache(maxsize=256)
def _rows(topology: Topology, n: int, step: int) -> list[Around]:
    w = topology.matrix(n, step)
    sources: list[dict[int, float]] = [{} for _ in range(n)]
    peers: list[list[int]] = [[] for _ in range(n)]
    for i, j in w.nonzero().tolist():  # by rows, so both lists come out sorted
        if i != j:
            sources[i][j] = float(w[i, j])
            peers[j].append(i)
    return [Around(float(w[i, i]), sources[i], tuple(peers[i])) for i in range(n)]


TOPOLOGIES: Registry[Topology] = Registry("topology", "thinwire.topologies")
"""Every graph by its name: `TOPOLOGIES.parse("torus:rows=4")`."""
