"""Results that may arrive during the next forward pass: a layer waits for its own gradients alone, and steps then.

Nothing is late: every layer computes with the weights that it would have had. But the first layer's gradients, which
backward completes last, are the first to be needed, so that they must overtake others. All ranks must send in one
order, and gradients are not ready at the same moment everywhere: the order is decided beforehand, from one profile
(`thinwire.engine.order`).

References: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), MLSys 2019;
Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP 2019.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from thinwire.engine.order import by_need

if TYPE_CHECKING:
    from thinwire.comm.tasks import Task
    from thinwire.engine.plan import Plan
    from thinwire.engine.planned import Cost
    from thinwire.sim.load import Load
    from thinwire.sim.player import Player


def starts(load: Load) -> dict[str, float]:
    """When the forward pass comes to each tensor: a layer's share of forward is its share of backward."""
    first = min(one.seconds for one in load.tensors)
    backward = load.computed - first
    return {one.name: first * (load.computed - one.seconds) / backward if backward else 0.0 for one in load.tensors}


def in_order(plan: Plan, load: Load, cost: Cost, credit: int) -> Plan:
    """The same buckets, by need."""
    begins, ready = starts(load), {one.name: one.seconds for one in load.tensors}
    order = by_need(
        [max(ready[item.name] for item in parcel.items) for parcel in plan.parcels],
        [parcel.layout.numel for parcel in plan.parcels],
        [min(begins[item.name] for item in parcel.items) for parcel in plan.parcels],
        cost,
        credit,
    )
    return replace(plan, parcels=tuple(plan.parcels[at] for at in order))


@final
class Forward:
    """Steps whose forward pass waits, layer by layer, for what the step before it launched."""

    def __init__(self, player: Player, plan: Plan) -> None:
        self._player = player
        begins = starts(player.stage.load)
        needed = [(min(begins[item.name] for item in parcel.items), at) for at, parcel in enumerate(plan.parcels)]
        self._needed = sorted(needed)  # (seconds after the start of a step, bucket)
        self._open: dict[int, list[Task[None]]] = {}  # by bucket, from the step before

    async def step(self, number: int, factor: float) -> None:
        """Forward, bucket by bucket; then backward, which launches."""
        player, load, at = self._player, self._player.stage.load, 0.0
        for time, bucket in self._needed:
            await player.compute(factor * (time - at), number)
            at = time
            await self._wait(bucket, number)
        for bucket, time in enumerate(player.script.launches):
            await player.compute(factor * (time - at), number)
            pieces = player.script.pieces
            self._open[bucket] = player.launch([one for one, piece in enumerate(pieces) if piece.bucket == bucket])
            at = time
        await player.compute(factor * (load.computed - at), number)
        player.round += 1
        await player.compute(factor * load.update, number, "update")

    async def end(self) -> None:
        """Nothing is left out: the last step's results are part of its model."""
        for bucket in list(self._open):
            await self._wait(bucket, -1)

    async def _wait(self, bucket: int, number: int) -> None:
        start = self._player.clock.now
        for piece in self._open.pop(bucket, []):
            await piece
        self._player.mark("wait", start, step=number)
