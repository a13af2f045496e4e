"""Erdos-Renyi graph: each pair of ranks is joined with probability p; Metropolis weights.

Drawn from (seed, n), and drawn again until it is connected, by the same rule on every rank. A rank has about p (n-1)
neighbours. The graph is connected with high probability if p is above ln n / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.draws import uniform
from thinwire.topology.mixing import metropolis
from thinwire.topology.refusals import parts

if TYPE_CHECKING:
    from torch import Tensor

TRIES = 100


@final
@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """A fixed random graph."""

    name: ClassVar[str] = "erdos-renyi"
    p: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"ErdosRenyi(p={self.p}) is outside 0 < p <= 1; write ErdosRenyi(p=0.5)")

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """Metropolis weights of the first draw that is connected."""
        pairs = torch.triu_indices(n, n, 1).T
        for attempt in range(TRIES):
            chosen = pairs[uniform(len(pairs), self.seed, n, attempt) < self.p]
            w = metropolis([(i, j) for i, j in chosen.tolist()], n)
            if len(parts(w)) == 1:
                return w
        enough = min(1.0, math.ceil(200 * math.log(n) / n) / 100)
        raise ValueError(
            f"{self!r} with {n} ranks was not connected in {TRIES} draws; write ErdosRenyi(p={enough}) or more"
        )


TOPOLOGIES.add(ErdosRenyi.name, ErdosRenyi)
