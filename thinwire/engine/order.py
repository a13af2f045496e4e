"""Order: which bucket is sent first where results may arrive during the next forward pass.

The first layer's gradients, which backward completes last, are the first to be needed, so that they must overtake
others. All ranks must send in one order, and gradients are not ready at the same moment everywhere: the order is
decided beforehand, from one profile. `by_need` plays a link on which, whenever it is free, the ready bucket goes next
that is needed first, and has been chosen when `credit` buckets were left under way. Nothing that is on its way is
interrupted.

References: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), MLSys 2019;
Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.engine.plan import Plan
    from thinwire.engine.planned import Cost


def by_need(
    ready: Sequence[float], sizes: Sequence[float], needed: Sequence[float], cost: Cost, credit: int = 1
) -> list[int]:
    """The order in which to send buckets.

    >>> from thinwire.engine.planned import Cost
    >>> by_need(ready=[0.0, 0.1, 0.2], sizes=[1, 1, 1], needed=[3.0, 2.0, 1.0], cost=Cost(0.0, 1.0))
    [0, 2, 1]
    """
    left, order, ends = set(range(len(sizes))), [], [0.0]
    while left:
        chosen = ends[-credit] if len(ends) > credit else 0.0
        chosen = max(chosen, min(ready[at] for at in left))
        at = min((one for one in left if ready[one] <= chosen), key=lambda one: (needed[one], one))
        left.remove(at)
        order.append(at)
        ends.append(max(ends[-1], ready[at]) + cost.of(sizes[at]))
    return order


def newest_first(plan: Plan, ready: Mapping[str, float], cost: Cost, credit: int) -> Plan:
    """The same buckets by need: what backward completes last is needed first."""
    times = [max(ready[item.name] for item in parcel.items) for parcel in plan.parcels]
    sizes = [parcel.layout.numel for parcel in plan.parcels]
    order = by_need(times, sizes, [-time for time in times], cost, credit)
    return replace(plan, parcels=tuple(plan.parcels[at] for at in order))
