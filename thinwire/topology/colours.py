"""Colours of a graph: neighbours differ, so ranks of one colour may act while the others hold still.

Where the graph is bipartite there are two colours, found breadth first. Otherwise they are found greedily, from the
rank with the most neighbours on. They depend on the graph alone, so that every rank finds the same without asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.topology.base import Topology


def colouring(topology: Topology, n: int) -> list[int]:
    """A colour for each rank, counted from 0; neighbours have different ones.

    >>> from thinwire.topology import Ring, colouring
    >>> colouring(Ring(), 4), colouring(Ring(), 5)
    ([0, 1, 0, 1], [0, 1, 0, 1, 2])
    """
    if topology.directed or topology.period(n) != 1:
        kind = "is directed" if topology.directed else "changes from step to step"
        raise ValueError(f"{topology!r} {kind}, and only a fixed undirected graph has colours; write Ring()")
    around = [set(topology.around(i, n).peers) for i in range(n)]
    return _two(around) or _greedy(around)


def _two(around: list[set[int]]) -> list[int] | None:
    """Breadth first from the lowest rank of each part; None where the graph has an odd cycle."""
    colours = [-1] * len(around)
    for start in range(len(around)):
        if colours[start] >= 0:
            continue
        colours[start], queue = 0, [start]
        for i in queue:
            for j in sorted(around[i]):
                if colours[j] == colours[i]:
                    return None
                if colours[j] < 0:
                    colours[j] = 1 - colours[i]
                    queue.append(j)
    return colours


def _greedy(around: list[set[int]]) -> list[int]:
    colours = [-1] * len(around)
    for i in sorted(range(len(around)), key=lambda i: (-len(around[i]), i)):
        taken = {colours[j] for j in around[i]}
        colours[i] = next(c for c in range(len(around)) if c not in taken)
    return colours
