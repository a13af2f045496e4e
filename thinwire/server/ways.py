"""Ways: workers of a server take local steps, and push how far they went: the worker's half of `Sync(of=Delta())`.

    worker    x = x - eta g(x)        `every` times, with its own optimizer
              sends d = anchor - x    through the channel
    server    x_s = outer step of x_s by d, when its rule says so
    worker    x = anchor = x_s        the answer; without one, it goes on where it is, and anchor = x

Nobody waits for a round: it is asynchronous DiLoCo, or asynchronous local SGD where the outer step is `Sgd(1, 0)`.

Reference: Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato, "Asynchronous local-SGD training for language
modeling", 2024, arXiv 2401.09135, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.server.worker import Work, WorkerHalf

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import State


@final
@dataclass(frozen=True)
class Ways(WorkerHalf):
    """The anchor is where the way begins that has not been sent yet."""

    name: ClassVar[str] = "ways"
    local_steps: ClassVar[bool] = True
    anchor: ClassVar[str] = "anchor"

    def worker(self, x: Tensor, workers: int) -> State:
        """All set out from the common model."""
        return {"anchor": x.clone()}

    def push(self, work: Work, state: State) -> Tensor:
        """With the sign of a gradient."""
        d = state["anchor"] - work.x
        state["anchor"].copy_(work.x)
        return d

    def pull(self, x: Tensor, answer: Tensor, state: State) -> Tensor:
        """Set out from there."""
        state["anchor"].copy_(answer)
        return answer
