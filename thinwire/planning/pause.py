"""Pause: the wait of a training loop for its gradients, without anything that is exchanged.

A loop that waits is slower than one that does not, the wait itself apart: its threads have gone to sleep and must be
woken, and what they need has left the caches. So whatever is timed of a loop that will wait is timed while it waits.
`Pause` is such a wait, a hook before the optimizer's step, and `Idle` an exchange that takes no time of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel
from thinwire.core.exchange import Exchange
from thinwire.core.memory import NoMemory

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State

SECONDS = 0.02  # longer than idle threads of OpenMP spin before they go to sleep


@final
@dataclass(eq=False)
class Pause:
    """Waits, and counts what that took: seconds, and processor seconds that idle threads have burnt meanwhile."""

    seconds: float = SECONDS
    wall: float = 0.0
    cpu: float = 0.0

    def __call__(self, *_: object) -> None:
        """Wait."""
        if self.seconds:
            wall, cpu = time.perf_counter(), time.process_time()
            time.sleep(self.seconds)
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu

    def taken(self) -> float:
        """Seconds since this was last asked."""
        wall, self.wall, self.cpu = self.wall, 0.0, 0.0
        return wall


@final
@dataclass(frozen=True)
class Idle(Exchange):
    """Gives every rank its own vector back."""

    name: ClassVar[str] = "idle"

    @property
    def hops(self) -> dict[str, Channel]:
        """One, which nothing takes."""
        return {"": Channel(Identity(), NoMemory())}

    @property
    def plain(self) -> Exchange:
        """The same."""
        return self

    @property
    def carries_nan(self) -> bool:
        """As a plain sum: no lane waits for an agreement."""
        return True

    @property
    def measurable(self) -> bool:
        """Nothing is lost."""
        return False

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The vector."""
        return x
