"""Hypercube: ranks whose numbers differ in one bit are neighbours.

    m = log2 n neighbours,    W[i, i] = W[i, i xor 2^k] = 1 / (1 + m),    gap 2 / (1 + m)

These are the Metropolis weights, which are all equal because all degrees are.
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
class Hypercube(Topology):
    """log2 n neighbours; n is a power of two."""

    name: ClassVar[str] = "hypercube"

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """Equal weights."""
        if n & (n - 1):
            near = 1 << (n.bit_length() - 1)
            raise ValueError(
                f"a hypercube has a power of two of ranks, {near} or {2 * near} and not {n}; write Torus(), or "
                "Exponential() where the graph may be directed"
            )
        bits = n.bit_length() - 1
        return metropolis([(i, i ^ (1 << k)) for i in range(n) for k in range(bits)], n)


TOPOLOGIES.add(Hypercube.name, Hypercube)
