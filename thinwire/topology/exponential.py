"""Static exponential graph: rank i takes from i + 1, i + 2, i + 4 and so on, from each as much as it keeps.

    m = ceil(log2 n),    W[i, i] = W[i, i + 2^k] = 1 / (1 + m) for k < m,    gap 2 / (1 + m) for even n

It is directed and doubly stochastic: rows and columns sum to one, so push-sum's weights stay one.

Reference: Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential graph is provably efficient for decentralized deep training",
NeurIPS 2021, arXiv 2110.13363.

Departs from the paper: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.mixing import circulant

if TYPE_CHECKING:
    from torch import Tensor


def hops(n: int) -> list[int]:
    """The powers 1, 2, 4, ... below n: ceil(log2 n) of them."""
    return [1 << k for k in range((n - 1).bit_length())]


@final
@dataclass(frozen=True)
class Exponential(Topology):
    """ceil(log2 n) neighbours in each direction, and not the same ones."""

    name: ClassVar[str] = "exponential"
    directed = True

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """Equal weights."""
        offsets = [0, *hops(n)]
        return circulant(n, dict.fromkeys(offsets, 1 / len(offsets)))


TOPOLOGIES.add(Exponential.name, Exponential)
