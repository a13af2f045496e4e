"""Ring: two neighbours, one third each, as in the code of CHOCO-SGD.

W[i, i] = W[i, i +- 1] = 1/3,    eigenvalues 1/3 + 2/3 cos(2 pi k / n)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.mixing import circulant, metropolis

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Ring(Topology):
    """Rank i talks to i - 1 and i + 1. Two ranks share one edge, with weight 1/2."""

    name: ClassVar[str] = "ring"

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """Thirds; below three ranks, the path's Metropolis weights."""
        if n < 3:
            return metropolis([(0, 1)] if n == 2 else [], n)
        return circulant(n, {0: 1 / 3, 1: 1 / 3, -1: 1 / 3})


TOPOLOGIES.add(Ring.name, Ring)
