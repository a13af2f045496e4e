"""Figures: what the servers of all shards say in `stats()`, as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

ADDED = ("waited_s", "bytes_sent", "messages", "updates", "pushes", "used", "dropped")
AGES = "staleness_"


def total(stats: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The figures of all ranks together: sums, a common histogram of staleness, and how many shards there are.

    A gradient is pushed, used or dropped once per shard; so `used / shards` are gradients of the whole model.

    >>> one = {"shard": 0, "used": 2, "staleness_0": 2}
    >>> total([one, {"shard": 1, "used": 2, "staleness_0": 1, "staleness_3": 1}])
    {'shards': 2, 'used': 4, 'staleness_mean': 0.75, 'staleness_max': 3, 'staleness_0': 3, 'staleness_3': 1}
    """
    some = list(stats)
    lost = [one["workers_lost"] for one in some if "workers_lost" in one]  # every server counts the same ones
    ages: Counter[int] = Counter()
    for one in some:
        for name, n in one.items():
            if name.startswith(AGES) and name[len(AGES) :].isdecimal():
                ages[int(name[len(AGES) :])] += int(n)
    count = sum(ages.values())
    return {
        "shards": sum("shard" in one for one in some),
        **{name: sum(one.get(name, 0) for one in some) for name in ADDED if any(name in one for one in some)},
        **({"workers_lost": max(lost)} if lost else {}),
        "staleness_mean": sum(age * n for age, n in ages.items()) / max(1, count),
        "staleness_max": max(ages, default=0),
        **{f"{AGES}{age}": n for age, n in sorted(ages.items())},
    }
