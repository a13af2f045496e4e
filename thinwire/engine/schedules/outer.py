"""Outer: after some local steps the way that each worker went is exchanged, and an outer optimizer follows the mean.

    d    = mean over ranks of (anchor - x_i)      exchanged as a gradient is, through any channel
    v    = mu v + d
    x    = anchor - outer_lr (d + mu v)           SGD with Nesterov's momentum; the new anchor, equal on all ranks

With outer_lr = 1 and mu = 0 it is local SGD.

Reference: Douillard, Feng, Rusu, et al., "DiLoCo: distributed low-communication training of language models", 2023,
arXiv 2311.08105, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, final

import torch

from thinwire.engine.events import StepBegins, StepEnds
from thinwire.engine.schedules.base import Schedule

if TYPE_CHECKING:
    from thinwire.core.signals import Delta
    from thinwire.engine.loop import Loop


@final
class Outer(Schedule):
    """`kept["local"]` counts the steps since the last exchange."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._of, self._every = cast("Delta", loop.method.sync.of), loop.method.sync.every
        loop.extra("model", "anchor", "velocity")
        loop.kept = {"local": 0}

    @torch.no_grad()
    def begin(self) -> None:
        """The anchor is the common model."""
        for bucket in self.loop.gather():
            bucket.extra["anchor"].copy_(bucket.flat)
            bucket.extra["velocity"].zero_()

    async def run(self) -> None:
        """Local steps, and an outer one after so many outside no_sync blocks."""
        loop = self.loop
        while True:
            await loop.next(StepBegins)
            loop.skipping.look()
            await loop.next(StepEnds)
            loop.kept["local"] += 1
            if not loop.quiet() and loop.kept["local"] >= self._every:
                await self._outer_step()

    @torch.no_grad()
    def _delta(self) -> None:
        for bucket in self.loop.gather():
            torch.sub(bucket.extra["anchor"], bucket.flat, out=bucket.flat)
            bucket.used = bytearray(b"\1" * len(bucket.views))

    async def _outer_step(self) -> None:
        loop, mu = self.loop, self._of.outer_momentum
        self._delta()
        loop.runner.telemetry.events = []
        rounds = [loop.runner.launch(bucket) for bucket in loop.buckets]
        for going in rounds:
            agreed = await loop.runner.wait(going)
            if not agreed.finite:
                raise FloatingPointError(
                    f"the model of rank {agreed.broken - 1} is not finite in step {going.number}"
                )
        loop.runner.check(rounds)
        for going in rounds:
            extra, d = going.bucket.extra, going.x
            extra["velocity"].mul_(mu).add_(d)
            extra["anchor"].sub_(d + mu * extra["velocity"], alpha=self._of.outer_lr)
            d.copy_(extra["anchor"])
        loop.take()
        loop.kept["local"] = 0
        loop.runner.end_round()

    async def save(self) -> dict[str, Any]:
        """The model of this rank goes with anchor and velocity."""
        for bucket, model in zip(self.loop.buckets, self.loop.models(), strict=True):
            bucket.extra["model"].copy_(model)
        return await super().save()

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on from this rank's model; on another number of ranks, from the mean of all."""
        self.loop.kept["local"] = int(saved.get("local", 0))
        for bucket in self.loop.buckets:
            bucket.flat.copy_(bucket.extra["model"])
        self.loop.take()
