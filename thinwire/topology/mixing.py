"""Mixing matrices: Metropolis weights, how fast W averages, how hard it pulls.

    Metropolis   W[i, j] = 1 / (1 + max(deg_i, deg_j)) on edges, W[i, i] = 1 - sum of the rest of the row
    gap          1 - rho, rho = |W - 11'/n|_2: disagreement shrinks by rho per step; 1 averages at once, 0 never
    pull         |I - W|_2: how far one step may move the ranks against each other

`thinwire.topology.refusals` says which W are refused; `thinwire.topology.colours` colours a graph.

>>> from thinwire.topology import OnePeer, Ring, gap
>>> round(gap(Ring(), 16), 5), gap(OnePeer(), 16)
(0.05075, 1.0)

Reference: Xiao, Boyd, Lall, "A scheme for robust distributed sensor fusion based on average consensus", IPSN 2005,
for the Metropolis weights.

Departs from the paper: nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import torch

from thinwire.topology.colours import colouring
from thinwire.topology.refusals import TOLERANCE, check, check_topology, steps

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.topology.base import Topology

__all__ = [
    "check",
    "check_topology",
    "circulant",
    "colouring",
    "gap",
    "largest_pull",
    "matrices",
    "metropolis",
    "spectral_gap",
]
DRAWS = 1024  # matrices averaged for E[W'W] where no closed form is known


def circulant(n: int, weights: Mapping[int, float]) -> Tensor:
    """W[i, (i + offset) mod n] = weight; where offsets coincide, their weights are added."""
    w = torch.zeros(n, n, dtype=torch.float64)
    i = torch.arange(n)
    for offset, weight in weights.items():
        w[i, (i + offset) % n] += weight
    return w


def metropolis(edges: Iterable[tuple[int, int]], n: int) -> Tensor:
    """W[i, j] = 1 / (1 + max(deg_i, deg_j)) on the edges of an undirected graph, and the rest on the diagonal."""
    pairs = sorted({(min(edge), max(edge)) for edge in edges})
    i, j = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    degree = torch.bincount(torch.cat((i, j)), minlength=n)
    w = torch.zeros(n, n, dtype=torch.float64)
    w[i, j] = w[j, i] = 1 / (1 + torch.maximum(degree[i], degree[j])).double()
    w += torch.diag(1 - w.sum(1))
    return w


def spectral_gap(w: Tensor) -> float:
    """1 - |W - 11'/n|_2: 1 averages at once, 0 never."""
    n = w.shape[0]
    return 1 - float(torch.linalg.matrix_norm(w - torch.full_like(w, 1 / n), 2))


def matrices(topology: Topology, n: int) -> Iterator[Tensor]:
    """The W of every step of a period, or of the first 32 to 128 steps where it never repeats."""
    return (topology.matrix(n, step) for step in steps(topology, n))


@lru_cache(maxsize=256)
def gap(topology: Topology, n: int) -> float:
    """The spectral gap per step.

    Where W repeats after p steps, 1 - |P - 11'/n|_2^(1/p) of the product P over a period. Where it is drawn anew each
    step, 1 - sqrt(second eigenvalue of E[W'W]). Where rows do not sum to one, and push-sum divides by what P makes of
    ones, 1 - |second eigenvalue of P|^(1/p).
    """
    period = topology.period(n)
    if period is None:
        return 1 - math.sqrt(_mean_square(topology, n))
    product = torch.eye(n, dtype=torch.float64)
    for w in matrices(topology, n):
        product = w @ product
    if float((product.sum(1) - 1).abs().max()) < TOLERANCE:
        rho = 1 - spectral_gap(product)
    else:
        rho = float(torch.linalg.eigvals(product).abs().sort(descending=True).values[1])
    return 1 - math.pow(rho if rho > 1e-12 else 0, 1 / period)  # a root would amplify rounding


@lru_cache(maxsize=256)
def largest_pull(topology: Topology, n: int) -> float:
    """|I - W|_2, the largest of a period, or of the first 16 steps where W never repeats."""
    eye, some = torch.eye(n, dtype=torch.float64), topology.period(n) or 16
    return max(float(torch.linalg.matrix_norm(eye - w, 2)) for w in islice(matrices(topology, n), some))


def _mean_square(topology: Topology, n: int) -> float:
    known = topology.mean_square(n)
    if known is not None:
        return known
    total = torch.zeros(n, n, dtype=torch.float64)
    for step in range(DRAWS):
        w = topology.matrix(n, step)
        total += w.T @ w / DRAWS
    return max(0.0, float(torch.linalg.eigvalsh(total - torch.full_like(total, 1 / n))[-1]))
