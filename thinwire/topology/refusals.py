"""What no W may be: negative, not summing to one, asymmetric, in parts. Each message says where, and what to write.

rows sum to one       ranks that agree stay where they are
symmetric             columns then sum to one too, so that the mean over the ranks does not move
columns sum to one    for a directed graph: push-sum keeps the sum, and divides by what a one has become
connected             otherwise the parts never agree; in a directed graph every rank reaches every other
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.topology.base import Topology

TOLERANCE = 1e-6  # of sums and of symmetry, so that a W that was float32 passes


def check(w: Tensor, *, directed: bool = False) -> None:
    """Refuse a W that does not average. `directed`: columns sum to one, not rows, and W need not be symmetric."""
    _check_weights(w, directed)
    _check_connected(w, "the graph of W is")


def check_topology(topology: Topology, n: int) -> None:
    """Refuse a topology that does not average n ranks: every W of a period, and all of them together connected.

    Where W never repeats, the first 2n steps are checked, but at least 32 and at most 128.
    """
    if n < 1:
        raise ValueError(f"{n} ranks do not make a graph; write n=2 or more")
    together = torch.zeros(n, n, dtype=torch.float64)
    for step in steps(topology, n):
        w = topology.matrix(n, step)
        try:
            _check_weights(w, topology.directed)
        except ValueError as error:
            raise ValueError(f"{topology!r} with {n} ranks, step {step}: {error}") from None
        together += w
    _check_connected(together, f"{topology!r} with {n} ranks is")


def steps(topology: Topology, n: int) -> range:
    """The steps to check: those of a period or, where W never repeats, 2n draws within 32 to 128.

    Few draws of few ranks may all be the same; many draws of many ranks join everybody long before.
    """
    return range(topology.period(n) or min(max(2 * n, 32), 128))


def parts(w: Tensor) -> list[list[int]]:
    """The ranks in groups that reach each other along the edges of W, both ways."""
    edges, seen, groups = w != 0, torch.zeros(len(w), dtype=torch.bool), list[list[int]]()
    for rank in range(len(w)):
        if not seen[rank]:
            both = _reached(edges, rank) & _reached(edges.T, rank)
            seen |= both
            groups.append(both.nonzero().flatten().tolist())
    return groups


def _reached(edges: Tensor, rank: int) -> Tensor:
    """Which ranks a path leads to from this one; each is passed once."""
    found = torch.zeros(len(edges), dtype=torch.bool)
    front = torch.arange(len(edges)) == rank
    while front.any():
        found |= front
        front = edges[front].any(0) & ~found
    return found


def _check_weights(w: Tensor, directed: bool) -> None:
    if w.dim() != 2 or w.shape[0] != w.shape[1] or not len(w):
        raise ValueError(f"W is a square matrix with one row per rank; got the shape {tuple(w.shape)}")
    wrong = (~(w >= 0)).nonzero()  # NaN too
    if len(wrong):
        i, j = wrong[0].tolist()
        raise ValueError(f"W[{i}, {j}] = {float(w[i, j]):g}: weights are 0 or more; write 0 where there is no edge")
    line, fix = ("column", "w / w.sum(0)") if directed else ("row", "w + torch.diag(1 - w.sum(1))")
    sums = w.sum(0 if directed else 1)
    wrong = ((sums - 1).abs() > TOLERANCE).nonzero()
    if len(wrong):
        i = int(wrong[0])
        raise ValueError(
            f"{line} {i} of W sums to {float(sums[i]):.9g}, and {line}s sum to one; write {fix}"
            + ("" if directed else ", or directed=True where the columns sum to one")
        )
    wrong = ((w - w.T).abs() > TOLERANCE).nonzero()
    if len(wrong) and not directed:
        i, j = wrong[0].tolist()
        raise ValueError(
            f"W[{i}, {j}] = {float(w[i, j]):g} but W[{j}, {i}] = {float(w[j, i]):g}: not symmetric; "
            "write directed=True and use a push-sum method, or (w + w.T) / 2"
        )


def _check_connected(w: Tensor, what: str) -> None:
    found = parts(w)
    if len(found) > 1:
        raise ValueError(f"{what} not connected: its parts are {_spell(found)}; write an edge between them")


def _spell(found: list[list[int]], most: int = 6) -> str:
    def some(words: list[str], between: str) -> str:
        return between.join(words if len(words) <= most else [*words[: most - 1], "..."])

    return some([some([str(i) for i in part], ", ") for part in found], " | ")
