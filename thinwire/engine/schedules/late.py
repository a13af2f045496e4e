"""Late: a result is used `staleness` steps after its gradients were computed, and travels while training goes on.

    x_t+1 = step(x_t, mean of g_i(x_t-s))

Before the first results are there, the optimizer sees zeros. Rounds of warm-up are not late.

Reference: Li, Yu, Li, Avestimehr, Kim, Schwing, "Pipe-SGD: a decentralized pipelined SGD framework for distributed
deep net training", NeurIPS 2018, arXiv 1811.03619; its width K is staleness + 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.engine.agreement import LAST, Agreed
from thinwire.engine.damage import check_counts, check_like
from thinwire.engine.round import Round
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.schedules.gradients import launched

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.loop import Loop

Result = tuple["Tensor", Agreed]  # by bucket


@final
class Late(Schedule):
    """`_open` holds the rounds under way, the oldest first; in a checkpoint they are results."""

    hears_gradients = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._staleness = loop.method.sync.staleness or 0
        self._open: deque[list[Round] | list[Result]] = deque()
        loop.filling.copies = True
        self.shared_extra = tuple(f"late{age}" for age in range(self._staleness))
        loop.extra(*self.shared_extra)

    async def run(self) -> None:
        """Launch what backward computed, and deliver what it computed so many passes ago."""
        loop = self.loop
        while True:
            late = 0 if loop.runner.warm else self._staleness
            if not (rounds := await launched(loop)):
                continue
            self._open.append(rounds)
            loop.skipping.broken = False
            if len(self._open) <= late:
                for bucket in loop.buckets:
                    loop.filling.deliver(
                        bucket, torch.zeros_like(bucket.flat), Agreed(used=(True,) * len(bucket.views))
                    )
            while len(self._open) > late:
                for bucket, (x, agreed) in zip(loop.buckets, await self._arrived(self._open.popleft()), strict=True):
                    loop.filling.deliver(bucket, x, agreed, late=True)
            loop.filling.end()

    async def save(self) -> dict[str, Any]:
        """Wait for what is under way, and keep it as results."""
        arrived = [await self._arrived(one) for one in self._open]
        self._open = deque(arrived)
        said = []
        for age, results in enumerate(arrived):
            used: list[str] = []
            for bucket, (x, agreed) in zip(self.loop.buckets, results, strict=True):
                bucket.extra[f"late{age}"].copy_(x)
                used += [item.name for item, one in zip(bucket.items, agreed.used, strict=True) if one]
            said.append({"broken": max(agreed.broken for _, agreed in results), "used": used})
        return {**await super().save(), "late": said}

    def check(self, who: str, state: Mapping[str, Any], *, own: bool) -> None:
        """Results under way: at most as many as may be late."""
        late = state.get("late")
        if not isinstance(late, list | tuple) or len(late) > self._staleness:
            raise ValueError(f"{who} has no list 'late' of at most {self._staleness} results; it is damaged")
        for age, result in enumerate(late):
            check_like(who, f"late.{age}", result, {"broken": 0, "used": []} | _lists(result))
            check_counts(who, f"late.{age}.broken", result["broken"])
            if result["broken"] > LAST or not {*result["used"]} <= {*state["parameters"]}:
                raise ValueError(f"{who} has 'late.{age}' of tensors or ranks that are not there; it is damaged")

    def in_common(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Which results are under way."""
        return {"late": state["late"]}

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Results of earlier steps, which on another number of ranks are as good."""
        self._open = deque()
        for age, said in enumerate(saved.get("late", [])):
            used = set(said["used"])
            self._open.append(
                [
                    (
                        bucket.extra[f"late{age}"].clone(),
                        Agreed(said["broken"], used=tuple(item.name in used for item in bucket.items)),
                    )
                    for bucket in self.loop.buckets
                ]
            )

    async def _arrived(self, one: list[Round] | list[Result]) -> list[Result]:
        runner = self.loop.runner
        found = [(part.x, await runner.wait(part)) if isinstance(part, Round) else part for part in one]
        runner.check([part for part in one if isinstance(part, Round)])
        return found


def _lists(result: Any) -> dict[str, Any]:
    """Names in a list, of which there may be any number."""
    used = result.get("used") if isinstance(result, Mapping) else None
    return {"used": [""] * len(used)} if isinstance(used, list | tuple) else {}
