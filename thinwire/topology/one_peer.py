"""One-peer exponential graph: one neighbour per step, 1, then 2, then 4 ranks away.

    step t: W[i, i] = W[i, i + 2^(t mod m)] = 1/2,    m = ceil(log2 n)

A rank sends to one other and takes from one other. Where n is a power of two, m steps make the exact mean: the
product of m consecutive W is 11'/n. It is the default graph of stochastic gradient push.

Reference: Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019, arXiv
1811.10792. Ying, Yuan, Chen, Hu, Pan, Yin, NeurIPS 2021, arXiv 2110.13363, for the exact mean.

Departs from the papers: in stochastic gradient push rank i sends to i + 2^k, and here it takes from there: the same
graph with the ranks numbered backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.exponential import hops
from thinwire.topology.mixing import circulant

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class OnePeer(Topology):
    """One neighbour in each direction, and a new one each step."""

    name: ClassVar[str] = "one-peer"
    directed = True

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """One half at home, one half from the neighbour."""
        offsets = hops(n) or [0]
        return circulant(n, {0: 0.5}) + circulant(n, {offsets[step % len(offsets)]: 0.5})

    def period(self, n: int) -> int | None:
        """ceil(log2 n) steps."""
        return len(hops(n)) or 1


TOPOLOGIES.add(OnePeer.name, OnePeer)
