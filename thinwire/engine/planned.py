"""Planned buckets: where to cut, from when gradients are ready and what an exchange costs.

Tensors 0 .. L-1 stand in the order in which backward completes them. A group of them is exchanged once its last one
is ready and the group before it has ended, and takes a + b * size:

    end(group) = max(end(group before), ready(group)) + a + b * size(group)

`merged` is MG-WFBP's greedy rule. `exact` is the programme over all cuts: the earliest end of the first j tensors is
the least, over i < j, of what follows from the earliest end of the first i. It takes L^2 steps and is always best;
the rule is not.

Reference: Shi, Chu, Li, "MG-WFBP: efficient data communication for distributed synchronous SGD algorithms", INFOCOM
2019, arXiv 1811.11141, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

Cuts = list[int]  # where groups end: group k is cuts[k-1] .. cuts[k], and the last is L
SLACK = 0.002  # of the time until the last end, which cuts into fewer groups may take longer
ROUNDING = 1e-12  # of a time: sums in another order are the same


class Cost(NamedTuple):
    """Seconds of one exchange of `size`: a + b * size."""

    a: float
    b: float

    def of(self, size: float) -> float:
        """For one group."""
        return self.a + self.b * size


def end(ready: Sequence[float], sizes: Sequence[float], cost: Cost, cuts: Cuts) -> float:
    """When the last group has been exchanged.

    >>> end([1.0, 2.0], [10, 10], Cost(1.0, 0.1), [1, 2]), end([1.0, 2.0], [10, 10], Cost(1.0, 0.1), [2])
    (5.0, 5.0)
    """
    at = 0.0
    for start, stop in pairwise([0, *cuts]):
        at = max(at, *ready[start:stop]) + cost.of(sum(sizes[start:stop]))
    return at


def merged(
    ready: Sequence[float], sizes: Sequence[float], cost: Cost, kinds: Sequence[Hashable] | None = None
) -> Cuts:
    """MG-WFBP's cuts: a group takes in the next tensor if that is ready before the group could be on its way by a.

    Groups hold tensors of one of the `kinds`.
    """
    ready, cuts = list(accumulate(ready, max)), []
    free, size = 0.0, 0.0  # when the groups before this one have ended, and what this one holds
    for at in range(len(sizes) - 1):
        size += sizes[at]
        start, following = max(free, ready[at]), ready[at + 1]
        same = kinds is None or kinds[at] == kinds[at + 1]
        if not (same and following < start + cost.of(size) and following - start < cost.a):
            cuts.append(at + 1)
            free, size = start + cost.of(size), 0.0
    return [*cuts, len(sizes)]


def exact(
    ready: Sequence[float],
    sizes: Sequence[float],
    cost: Cost,
    kinds: Sequence[Hashable] | None = None,
    slack: float = 0.0,
) -> Cuts:
    """Cuts with the earliest end, or one that is later by the share `slack`, in few groups of one kind each."""
    ready, before, first = list(accumulate(ready, max)), [0.0, *accumulate(sizes)], _firsts(kinds, len(sizes))
    earliest = [0.0]
    for j in range(1, len(sizes) + 1):
        earliest.append(
            min(max(earliest[i], ready[j - 1]) + cost.of(before[j] - before[i]) for i in range(first[j - 1], j))
        )
    # The latest moment at which the link may come to tensor i so that the rest still ends in time.
    latest = [-math.inf] * len(sizes) + [earliest[-1] * (1 + slack + ROUNDING)]
    for i in reversed(range(len(sizes))):
        for j in range(i + 1, len(sizes) + 1):
            if first[j - 1] > i:
                break
            start = latest[j] - cost.of(before[j] - before[i])
            if ready[j - 1] <= start:
                latest[i] = max(latest[i], start)
    # Groups as large as that allows.
    cuts, i, free = [], 0, 0.0
    while i < len(sizes):
        fits = [
            (j, done)
            for j in range(i + 1, len(sizes) + 1)
            if first[j - 1] <= i
            and (done := max(free, ready[j - 1]) + cost.of(before[j] - before[i])) <= latest[j] + ROUNDING
        ]
        i, free = fits[-1]
        cuts.append(i)
    return cuts


Rule = Callable[[Sequence[float], Sequence[float], Cost, Sequence[Hashable] | None], Cuts]
RULES: Mapping[str, Rule] = {"planned": partial(exact, slack=SLACK), "mg-wfbp": merged}  # of Overlap(buckets=...)


def fit(samples: Sequence[tuple[float, float]]) -> Cost:
    """The cost that (size, seconds) show, by least squares; neither part is below 0.

    >>> fit([(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)])
    Cost(a=1.0, b=2.0)
    """
    if not samples:
        return Cost(0.0, 0.0)
    n = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / n, sum(y for _, y in samples) / n
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else math.inf
    if mean_y - slope * mean_x < 0:  # through the origin; also where all sizes are the same
        squares = sum(x * x for x, _ in samples)
        return Cost(0.0, max(0.0, sum(x * y for x, y in samples) / squares if squares else 0.0))
    if slope < 0:
        return Cost(max(0.0, mean_y), 0.0)
    return Cost(mean_y - slope * mean_x, slope)


def _firsts(kinds: Sequence[Hashable] | None, count: int) -> list[int]:
    """For each tensor, the first that may share a group with it: all between them are of its kind."""
    firsts: list[int] = []
    for at in range(count):
        firsts.append(firsts[-1] if at and (kinds is None or kinds[at] == kinds[at - 1]) else at)
    return firsts
