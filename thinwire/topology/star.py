"""Star: rank 0 talks to all others, and they talk to it alone.

    W[0, j] = W[j, 0] = 1/n,    W[j, j] = 1 - 1/n,    gap 1/n for n > 2

These are Metropolis weights. The hub sends n - 1 copies per step, like a parameter server without a link of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.mixing import metropolis

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Star(Topology):
    """Rank 0 in the middle."""

    name: ClassVar[str] = "star"

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """Metropolis weights."""
        return metropolis([(0, j) for j in range(1, n)], n)


TOPOLOGIES.add(Star.name, Star)
