"""Choice: which of several methods to take, of the times of their steps.

What the link takes was measured on the link, and stays so; what the processor takes depends on what else runs on the
machine. Of times that are as good as equal, the one counts that asks least of the processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CLOSE = 0.05  # of the step: forecasts that differ by less than that are equal
ALIKE = 0.02  # and real steps
MISS = 0.2  # of a step: by as much forecasts miss now and then (docs/planning.md)


class Took(NamedTuple):
    """Milliseconds per step of one method: as forecast, of the processor besides training, and of real steps."""

    forecast: float
    busy: float
    tried: float | None = None


class Choice(NamedTuple):
    """A method, the times that it was chosen by, and whether these are of real steps."""

    method: str
    times: dict[str, float]
    tried: bool

    @property
    def close(self) -> float:
        """By how much times may differ that count as equal."""
        return ALIKE if self.tried else CLOSE


def choose(methods: Mapping[str, Took]) -> Choice:
    """The method to take: by real steps where some were taken, otherwise by forecasts.

    >>> choose({"ddp": Took(100, 1), "quick": Took(50, 40), "light": Took(52, 5)}).method
    'light'
    """
    tried = {name: one.tried for name, one in methods.items() if one.tried is not None}
    found = Choice("", tried or {name: one.forecast for name, one in methods.items()}, bool(tried))
    most = min(found.times.values()) * (1 + found.close)
    near = [name for name, time in found.times.items() if time <= most]
    return found._replace(method=min(near, key=lambda name: (methods[name].busy, found.times[name])))


def undecided(forecasts: Mapping[str, float], chosen: str) -> list[str]:
    """The others whose forecasts are so near that of the chosen one that steps may be the other way round.

    >>> undecided({"ddp": 100, "quick": 50, "light": 52, "other": 60}, "light")
    ['quick', 'other']
    """
    most = forecasts[chosen] * (1 + MISS)
    order = sorted(forecasts, key=lambda name: forecasts[name])
    return [name for name in order if name != chosen and forecasts[name] <= most]
