"""Random matching: each step the ranks meet in pairs, drawn anew, and both take the mean.

    W[i, i] = W[i, j] = 1/2 for a pair (i, j);    if n is odd, one rank stays alone in that step
    E[W'W] = E[W] has second eigenvalue 1/2 - 1/(2(n-1)) for even n, 1/2 for odd n

The draw is a function of (seed, step, n): every rank makes the same one without asking.

Reference: Boyd, Ghosh, Prabhakar, Shah, "Randomized gossip algorithms", IEEE Transactions on Information Theory 2006.

Departs from the paper: there one pair meets at a time; here all pairs of a perfect matching meet in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.draws import uniform

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Matching(Topology):
    """One neighbour per step, at random."""

    name: ClassVar[str] = "matching"
    seed: int = 0

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """Halves on the pairs of this step."""
        order = uniform(n, self.seed, step, n).argsort(stable=True)
        i, j = order[: n // 2 * 2].reshape(-1, 2).T
        w = torch.eye(n, dtype=torch.float64)
        w[i, i] = w[j, j] = w[i, j] = w[j, i] = torch.tensor(0.5, dtype=torch.float64)
        return w

    def period(self, n: int) -> int | None:
        """None, since W never repeats; 1 for up to two ranks, which have only one matching."""
        return None if n > 2 else 1

    def mean_square(self, n: int) -> float | None:
        """In closed form: W is a projection, and a pair meets with probability 1/(n-1), or 1/n for odd n."""
        return 0.5 if n % 2 else 0.5 - 0.5 / (n - 1)


TOPOLOGIES.add(Matching.name, Matching)
