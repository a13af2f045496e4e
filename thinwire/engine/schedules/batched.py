"""Batched: gradients of batches whose sizes the method says, and steps that may be pulled back.

    n  = wire.batch(B_1)                   samples of the next step, and 0 when the budget is used up
    g  = mean over ranks of the gradients  as in `gradients.py`
    g  = g + theta (x - y)                 before the step, where theta > 0; y is extra["start"]

All ranks compute the same sizes from what they have taken so far, and so end in the same step. B_1 is agreed on in
the first step. y is the model before the first step of a run.

Reference: Yu, Jin, "On the computation and communication complexity of parallel SGD with dynamic batch sizes for
stochastic non-convex optimization", ICML 2019, arXiv 1905.04346, algorithms 1 and 2.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.batches import Taken
from thinwire.engine.damage import check_counts, check_like
from thinwire.engine.events import Gradient, Overdue, StepBegins, StepEnds
from thinwire.engine.local import like
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.schedules.gradients import launched
from thinwire.engine.schedules.words import Word, say

if TYPE_CHECKING:
    from thinwire.engine.loop import Loop

log = logging.getLogger("thinwire")


@final
class Batched(Schedule):
    """`kept`: B_1, 0 before it is known; whether all ranks have it; what was taken of the present run, and of all."""

    hears_gradients = True
    takes_closures = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        assert loop.method.sync.batches is not None
        self._batches, self._asked = loop.method.sync.batches, False
        ranks = loop.runner.comm.size
        self._budget, self._runs = self._batches.budget(ranks), self._batches.runs(ranks)
        loop.kept = {"first": 0, "agreed": False, "taken": list(Taken()), "samples": 0}
        if self._batches.theta:
            self.shared_extra = ("start",)
            loop.extra("start")

    async def run(self) -> None:
        """Exchange what backward computed, pull, and count the step."""
        loop = self.loop
        while True:
            event = await loop.next(Gradient, Overdue, StepBegins, StepEnds)
            if isinstance(event, Gradient | Overdue):
                if not (rounds := await launched(loop, event)):
                    continue
                await loop.filling.results(rounds)
                await self._agree()
                if loop.idle:
                    self._count()
            elif isinstance(event, StepBegins):
                self._pull()
            else:
                self._count()

    def batch(self, samples: int) -> int:
        """B_k of the next step; 0 when there is none. `samples` is B_1, the same in every call and on all ranks."""
        kept, taken = self.loop.kept, Taken(*self.loop.kept["taken"])
        first = kept["first"] or samples
        if samples != first:
            raise ValueError(
                f"batch({samples}): batches grow from {first}, which the first call said; write batch({first})"
            )
        if self._budget is not None and first > self._budget:
            raise ValueError(
                f"batch({first}): a run has {self._budget} samples, too few for its first step; "
                f"write batch({max(1, self._budget)}) or less, or a larger budget in the method"
            )
        kept["first"], self._asked = first, True
        if self._runs is not None and taken.run >= self._runs:
            return 0
        return self._batches.size(first, taken)

    def of_model(self) -> list[torch.Tensor]:
        """The model that a run began with."""
        return [bucket.extra["start"] for bucket in self.loop.buckets if self._batches.theta]

    def report(self) -> dict[str, float]:
        """Samples that this rank was told to take, and runs that have ended."""
        return {"samples": self.loop.kept["samples"], "runs_ended": self.loop.kept["taken"][0]}

    async def save(self) -> dict[str, Any]:
        """What was taken; y goes with the memories."""
        return {**self.loop.kept, "taken": list(self.loop.kept["taken"])}

    def check(self, who: str, state: Mapping[str, Any], *, own: bool) -> None:
        """Counts."""
        for name, now in self.loop.kept.items():
            check_like(who, name, state.get(name), now)
            if name != "agreed":
                check_counts(who, name, state[name])

    def in_common(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """All of it."""
        return {name: state[name] for name in self.loop.kept}

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on in the middle of a run, also on another number of ranks."""
        self.loop.kept = {name: saved[name] for name in self.loop.kept}
        self.loop.kept["taken"] = list(saved["taken"])

    async def _agree(self) -> None:
        """In the first step: ranks that grow from different sizes would end in different steps."""
        kept, runner = self.loop.kept, self.loop.runner
        if kept["agreed"]:
            return
        kept["agreed"] = True
        if self.loop.joining:
            alike = await self._agree_with_idle()
        else:
            alike = bool(await runner.common([str(kept["first"])]))
        if not alike:
            raise ValueError(
                f"rank {runner.comm.rank} called wire.batch({kept['first']}), and other ranks called it with other "
                "numbers, or not at all; write the same number on all ranks"
            )
        if not self._asked and runner.comm.rank == 0:
            log.warning(
                "%s says how large batches are, and nobody has asked: write `while n := wire.batch(64):` around the "
                "training loop, and take n samples (on the clock: Problem(batch=64))",
                self.loop.method.id,
            )

    async def _agree_with_idle(self) -> bool:
        """The same where a rank may have had no batch at all: it learns what the others have said."""
        kept, heard = self.loop.kept, self._asked or not self.loop.idle
        mine = Word(1, step=kept["first"], moved=-kept["first"]) if heard else Word(0, moved=-math.inf)
        said = await self.loop.transport.launch(say(mine))
        if not heard:
            kept["first"], self._asked = int(said.step), True
        return said.step == -said.moved

    @torch.no_grad()
    def _pull(self) -> None:
        """g + theta (x - y), with g = 0 for a parameter without a gradient."""
        theta = self._batches.theta
        if not theta:
            return
        if Taken(*self.loop.kept["taken"]).steps == 0:
            for bucket, model in zip(self.loop.buckets, self.loop.models(), strict=True):
                bucket.extra["start"].copy_(model)
        for bucket, members in zip(self.loop.buckets, self.loop.members, strict=True):
            for one, y in zip(members, bucket.cut(bucket.extra["start"]), strict=True):
                p, x = one.parameter, one.local
                pull = like(p, theta * (x - y.to(x.dtype)))
                p.grad = pull if p.grad is None else p.grad.add_(pull)

    def _count(self) -> None:
        """A step has been taken; where the next one would exceed the budget, the next run begins."""
        kept, taken = self.loop.kept, Taken(*self.loop.kept["taken"])
        if not self._asked:
            return  # nobody knows what the step took
        size = self._batches.size(kept["first"], taken)
        kept["samples"] += size
        taken = Taken(taken.run, taken.steps + 1, taken.samples + size)
        if self._budget is not None and taken.samples + self._batches.size(kept["first"], taken) > self._budget:
            taken = Taken(taken.run + 1)
        kept["taken"] = list(taken)
