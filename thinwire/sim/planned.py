"""Planned buckets on the clock: what an exchange costs there, and the cuts that follow from a load's own times.

An exchange beside others is shorter than one alone, because its latency passes while others are on the wire: the cost
of a size is what each of several equal buckets adds to a step without computing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from thinwire.engine.plan import Item, Parcel, Plan
from thinwire.engine.planned import Cost, fit
from thinwire.engine.planner import Planner
from thinwire.sim.load import Load, Ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from thinwire.core.method import Method

SIZES = (1 << 14, 1 << 20)  # elements of the buckets that are tried
FEW, MANY = 2, 10  # of them


def planned(method: Method, load: Load, min_size: int | None, seconds: Callable[[Method, Load, Plan], float]) -> Plan:
    """The plan that `attach` would come to; `seconds` foresees a step of a load under a plan."""
    ready = {one.name: one.seconds for one in load.tensors}
    known = cost(method, load.device, seconds)  # exact, for the order as well
    return Planner(method, tuple(load.items), min_size, ()).best(ready, known, known)


def cost(method: Method, device: str, seconds: Callable[[Method, Load, Plan], float]) -> Cost:
    """What one more exchange costs."""
    found = []
    for size in SIZES:
        few, many = (_equal(method, count, size, device, seconds) for count in (FEW, MANY))
        found.append((size, (many - few) / (MANY - FEW)))
    return fit(found)


def _equal(
    method: Method, count: int, size: int, device: str, seconds: Callable[[Method, Load, Plan], float]
) -> float:
    """A step of so many equal buckets, which are ready at once."""
    load = Load(tuple(Ready(f"{at}", (size,), 0.0) for at in range(count)), 0.0, device=device)
    items: list[Item] = load.items
    fixed = replace(method, overlap=replace(method.overlap, buckets="fixed"))
    return seconds(fixed, load, Plan(tuple(Parcel((item,), True) for item in items), method.id))
