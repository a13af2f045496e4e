"""Planner: measures the first rounds, and then has the buckets cut where the step ends earliest.

Two plans are measured, so that the cost of an exchange is known for large buckets and for small ones: the fixed one,
and one of sixteen small buckets. In each, the first round does not count. Then

    ready(tensor)   the time from the first gradient of a pass to that of this tensor: the median over rounds, and of
                    the ranks the last, since an exchange waits for it
    seconds(bucket) from its launch, or from the end of the bucket before it, to its end: the median over rounds, and
                    of the ranks the least, since the others waited for a rank
    a + b * size    fitted to the seconds of all buckets

Rank 0 decides, and tells the others. Where the plan promises too little, the fixed one comes back. With
`Overlap(into_forward="need")` it also decides in which order buckets are sent, whether they are planned or fixed. The
order depends on how much is sent until a gradient is ready, and not on where it is cut: there b alone counts, the
seconds of all buckets over their elements. The fit, in which few large buckets stand against many small ones whose
ends lie close together where several are under way, is often wrong by a tenth for the small ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, final

from thinwire.core.comm import to_bytes, to_tensor
from thinwire.engine.order import newest_first
from thinwire.engine.plan import Item, Parcel, Plan, plan_of
from thinwire.engine.planned import RULES, Cost, end, fit

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.clock import Span
    from thinwire.core.comm import Comm
    from thinwire.core.method import Method
    from thinwire.engine.driver import Driver
    from thinwire.engine.loop import Loop

ROUNDS = 3  # that count, under each of the two plans
SMALL = 16  # buckets of the second plan
WORTH = 0.01  # of the time from the first gradient to the last result, by which a plan must be better


class Sample(NamedTuple):
    """One bucket's exchange."""

    elements: int
    seconds: float


@final
@dataclass(frozen=True)
class Planner:
    """What a plan depends on besides measurements; `measured` fills up."""

    method: Method
    items: tuple[Item, ...]
    min_size: int | None
    exclude: tuple[str, ...]
    measured: Measured = field(default_factory=lambda: Measured())

    async def arrived(self, driver: Driver, parameter: Tensor | None) -> None:
        """A gradient is complete, or a round begins without any; between two rounds, buckets may change."""
        loop, seen = driver.loop, self.measured
        if loop.runner.round != seen.round:
            seen.end_round(loop.runner.telemetry.events, loop.plan, counts=not loop.runner.warm)
            seen.round = loop.runner.round
            if seen.rounds > ROUNDS:
                await self._turn(driver)
            seen.start = loop.now()
        if parameter is not None:
            seen.times[loop.filling.place(parameter).one.item.name] = loop.now() - seen.start

    async def _turn(self, driver: Driver) -> None:
        """From the fixed plan to the small buckets, and from there to the last plan."""
        seen, loop = self.measured, driver.loop
        seen.end_plan()
        if seen.plans == 1:
            await driver.renew(self.small())
        else:
            told = await loop.transport.launch(lambda comm: _told(comm, self, seen.report()))
            seen.done = True
            await driver.renew(self.of_names(told))

    def of_states(self, states: Sequence[Mapping[str, Any]]) -> Plan | None:
        """The plan in these states, if the run had come to one; ValueError if it does not fit."""
        told = states[0].get("buckets")
        if told is None:
            return None
        fits = isinstance(told, list) and all(isinstance(one, list | tuple) and len(one) == 2 for one in told)
        if not fits or any(state.get("buckets") != told for state in states):
            raise ValueError("the states have different 'buckets', or damaged ones; load the states of one run")
        return self.of_names(told)

    def fixed(self) -> Plan:
        """Without measurements."""
        return plan_of(self.method, self.items, self.min_size, self.exclude)

    def small(self) -> Plan:
        """The same in small buckets."""
        whole = 4 * sum(item.numel for item in self.items) / 2**20
        overlap = replace(self.method.overlap, bucket_mb=max(whole / SMALL, 4 / 2**20))
        return replace(
            plan_of(replace(self.method, overlap=overlap), self.items, self.min_size, self.exclude),
            method=self.method.id,
        )

    def best(self, ready: Mapping[str, float], cost: Cost, pace: Cost) -> Plan:
        """The buckets that the method asks for, cut by `cost`, in the order that it asks for, by `pace`."""
        overlap = self.method.overlap
        plan = self.fixed() if overlap.buckets == "fixed" else self.cut(ready, cost)
        return (
            newest_first(plan, ready, pace, self.method.lanes(self.items[0].device.type))
            if overlap.into_forward == "need"
            else plan
        )

    def cut(self, ready: Mapping[str, float], cost: Cost) -> Plan:
        """The plan by the rule that the method asks for, or the fixed one if that ends nearly as early.

        The uncompressed tensors beside compressed ones are few and small, and stay as they are.
        """
        fixed = self.fixed()
        plain = self.method.exchange == self.method.exchange.plain
        moved = [parcel for parcel in fixed.parcels if parcel.compressed or plain]
        items = sorted((item for parcel in moved for item in parcel.items), key=lambda item: ready[item.name])
        times, sizes = [ready[item.name] for item in items], [item.numel for item in items]
        rule = RULES[self.method.overlap.buckets]
        cuts = rule(times, sizes, cost, [(item.group, item.device) for item in items])
        before = [item for parcel in moved for item in parcel.items]
        edges = _edges(moved)
        fixed_end = end([ready[item.name] for item in before], [item.numel for item in before], cost, edges)
        if end(times, sizes, cost, cuts) > (1 - WORTH) * fixed_end:
            return fixed
        parcels = [Parcel(tuple(items[i:j]), moved[0].compressed) for i, j in zip([0, *cuts], cuts, strict=False)]
        return replace(fixed, parcels=(*parcels, *(parcel for parcel in fixed.parcels if parcel not in moved)))

    def of_names(self, told: Sequence[tuple[bool, Sequence[str]]]) -> Plan:
        """The plan whose buckets, compressed or not, hold the tensors of these names; ValueError if it cannot be."""
        by_name = {item.name: item for item in self.items}
        if sorted(name for _, names in told for name in names) != sorted(by_name):
            raise ValueError("the planned buckets hold other tensors than the model; attach with the same model")
        parcels = tuple(Parcel(tuple(by_name[name] for name in names), bool(one)) for one, names in told)
        return replace(self.fixed(), parcels=parcels)


@final
@dataclass
class Measured:
    """What one rank has seen. `rounds` are those of the present plan whose exchanges are known."""

    done: bool = False  # the last plan is in use
    round: int = -1
    rounds: int = 0
    plans: int = 0  # that have been measured
    start: float = 0.0  # of the present pass
    times: dict[str, float] = field(default_factory=dict)  # of the present pass
    ready: dict[str, list[float]] = field(default_factory=dict)
    open: dict[int, list[Sample]] = field(default_factory=dict)  # by bucket of the present plan
    samples: list[Sample] = field(default_factory=list)  # medians, of the plans before it

    def end_round(self, events: Sequence[Span], plan: Plan, *, counts: bool) -> None:
        """Take up a round that has ended, with what is known of its exchanges."""
        times, self.times = self.times, {}
        found = samples(events, plan)
        if not found or not counts:  # the first of all, results that are still on their way, or a warm-up
            return
        self.rounds += 1
        if self.rounds == 1:
            return
        last = max(times.values(), default=0.0)
        for parcel in plan.parcels:
            for item in parcel.items:
                self.ready.setdefault(item.name, []).append(times.get(item.name, last))
        for bucket, sample in found.items():
            self.open.setdefault(bucket, []).append(sample)

    def end_plan(self) -> None:
        """Begin to measure another plan."""
        for _, some in sorted(self.open.items()):
            self.samples.append(Sample(some[0].elements, median(one.seconds for one in some)))
        self.open, self.rounds, self.plans = {}, 0, self.plans + 1

    def report(self) -> str:
        """All of it, for the other ranks."""
        return json.dumps(
            {"ready": {name: median(some) for name, some in self.ready.items()}, "samples": self.samples}
        )


def planner(method: Method, items: Sequence[Item], min_size: int | None, exclude: Sequence[str]) -> Planner | None:
    """For methods that ask for planned buckets, or for an order of them."""
    if method.overlap.buckets == "fixed" and method.overlap.into_forward != "need":
        return None
    return Planner(method, tuple(items), min_size, tuple(exclude))


def samples(events: Sequence[Span], plan: Plan) -> dict[int, Sample]:
    """What the exchanges of a round took, by bucket, where the method's own exchange was used."""
    begun = {span.bucket: span.start for span in events if span.what == "launch"}
    ended: dict[int, float] = {}
    for span in events:
        if span.bucket in begun:
            ended[span.bucket] = max(span.stop, ended.get(span.bucket, span.stop))
    found, free = {}, 0.0
    for bucket, start in sorted(begun.items()):
        seconds = max(0.0, ended[bucket] - max(start, free))
        free = max(free, ended[bucket])
        if plan.parcels[bucket].compressed:
            found[bucket] = Sample(plan.parcels[bucket].layout.numel, seconds)
    return found


def decided(planner: Planner, reports: Sequence[str]) -> Plan:
    """The plan that follows from what all ranks have measured."""
    said = [json.loads(report) for report in reports]
    ready = {item.name: max(one["ready"][item.name] for one in said) for item in planner.items}
    taken = [one["samples"] for one in said]
    least = [min(same, key=lambda one: one[1]) for same in zip(*taken, strict=True)]
    return planner.best(ready, fit([(elements, seconds) for elements, seconds in least]), pace(taken))


def pace(taken: Sequence[Sequence[tuple[int, float]]]) -> Cost:
    """Seconds per element, from the samples of each rank; the least, since the other ranks waited for one.

    >>> pace([[(100, 2.0), (300, 2.0)], [(100, 0.5), (300, 3.5)]])
    Cost(a=0.0, b=0.01)
    """
    elements = sum(size for size, _ in taken[0])
    return Cost(0.0, min(sum(seconds for _, seconds in one) for one in taken) / elements if elements else 0.0)


async def _told(comm: Comm, planner: Planner, report: str) -> list[tuple[bool, list[str]]]:
    """What rank 0 makes of everybody's report."""
    said = [to_bytes(one).decode() for one in await comm.all_gather(to_tensor(report.encode()))]
    plan = json.dumps(names(decided(planner, said))) if comm.rank == 0 else " "
    first, *_ = await comm.all_gather(to_tensor(plan.encode()))
    found: list[tuple[bool, list[str]]] = json.loads(to_bytes(first))
    return found


def names(plan: Plan) -> list[tuple[bool, list[str]]]:
    """The inverse of `Planner.of_names`."""
    return [(parcel.compressed, [item.name for item in parcel.items]) for parcel in plan.parcels]


def said(loop: Loop) -> dict[str, Any]:
    """What a checkpoint says of planned buckets: noise depends on where they are cut, and the next run cuts there."""
    return {"buckets": names(loop.plan)} if loop.planner is not None and loop.planner.measured.done else {}


def saved_plan(loop: Loop, states: Mapping[int, Mapping[str, Any]]) -> Plan | None:
    """The buckets of the run that was saved, if it had planned some."""
    return None if loop.planner is None else loop.planner.of_states([*states.values()])


async def resume(driver: Driver, plan: Plan) -> None:
    """Go on with the buckets of the run that was saved. Every rank calls it."""
    assert driver.loop.planner is not None
    driver.loop.planner.measured.done = True
    await driver.renew(plan)


def _edges(parcels: Sequence[Parcel]) -> list[int]:
    """Where these buckets end in the list of their tensors."""
    edges = [0]
    for parcel in parcels:
        edges.append(edges[-1] + len(parcel.items))
    return edges[1:]
