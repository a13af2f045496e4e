"""Complete graph: everybody is joined to everybody, W = 11'/n, gap 1.

Gossip on it is an all-reduce of models that sends n - 1 copies instead of 2 (n-1)/n: it serves tests and comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.topology.base import TOPOLOGIES, Topology

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Complete(Topology):
    """n - 1 neighbours."""

    name: ClassVar[str] = "complete"

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """1/n everywhere."""
        return torch.full((n, n), 1 / n, dtype=torch.float64)


TOPOLOGIES.add(Complete.name, Complete)
