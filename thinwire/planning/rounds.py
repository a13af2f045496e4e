"""Rounds: what several timings of the same thing say it takes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGER = 1.5  # times, by which the longer of two findings counts at most; more was a disturbance


def undisturbed(times: Sequence[float]) -> float:
    """The median, without rounds of more than twice the lower quartile: new memory may disturb many rounds in a row.

    >>> undisturbed([48.9, 52.1, 47.9, 47.8, 56.4, 6.0, 4.4])
    5.2
    """
    least = sorted(times)[len(times) // 4]
    return median(one for one in times if one <= 2 * least)


def either(one: float, other: float) -> float:
    """What lies between two ways of timing the same thing, one of which takes too little into account, one too much.

    >>> either(10.0, 12.0), either(30.0, 10.0)
    (11.0, 12.5)
    """
    shorter, longer = sorted((one, other))
    return (shorter + min(longer, LONGER * shorter)) / 2
