"""Schedule: when a worker exchanges what, as a coroutine over its life."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.checkpoint import Restored
    from thinwire.engine.loop import Loop

CHANGED = (
    "the parameters have changed since {call}, and {kept} is still what that found; load the model before it, or "
    "write wire.load_state_dict(state) after it"
)


class Schedule(ABC):
    """Base class. A schedule is made for one loop, and reads the method's numbers from it."""

    hears_gradients = False  # whether it awaits `Gradient`
    hears_loss = False  # whether it asks for the loss of every step
    takes_closures = False  # whether the closure of a step is called before `StepBegins`, and may be called again
    looks_at_gradients = (
        False  # whether it looks at a step's gradients at `StepBegins`; a closure is called before it
    )

    into_forward = False  # whether steps are taken in the forward pass after them
    apart = False  # whether ranks may have different models when all have ended their batches
    shared_extra: tuple[str, ...] = ()  # tensors in the buckets' `extra` that are the same on all ranks

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def begin(self) -> None:  # noqa: B027  (gradients need no preparation)
        """Prepare to train: all replicas are equal now, and memories are as `init` left them."""

    @property
    def trains(self) -> bool:
        """Whether this rank trains; a rank may only serve."""
        return True

    @abstractmethod
    async def run(self) -> None:
        """The life of the worker; it starts anew after `load` and after an error."""

    async def save(self) -> dict[str, Any]:
        """What a checkpoint needs beside the memories; tensors are put into the buckets' `extra`."""
        return dict(self.loop.kept)

    def check(self, who: str, state: Mapping[str, Any], *, own: bool) -> None:  # noqa: B027
        """Raise ValueError if `save` cannot have returned this; nothing is changed.

        A state that is this rank's `own` fits what it has now; others may be of another number of ranks.
        """

    def in_common(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What a state says that must be the same on all ranks, by entry."""
        return {}

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:  # noqa: B027  (gradients save nothing)
        """Take up what `save` returned, after the memories and `extra` have been restored."""

    async def adopt(self, found: Restored) -> None:  # noqa: B027  (most find what they need in `load`)
        """Take up what concerns several ranks, after `load`; every rank calls it."""

    @property
    def lacks(self) -> bool:
        """Whether parameters still lack something of the last step."""
        return False

    async def catch_up(self, buckets: Collection[int] | None = None) -> None:  # noqa: B027  (most wait in the step)
        """Wait for what the parameters of these buckets, or of all, still lack of the last step, and take it."""

    async def settle(self) -> None:
        """Wait for all that is under way, of the last step and of a backward pass that no step has followed."""
        await self.catch_up()

    async def backward_begins(self) -> None:  # noqa: B027
        """Wait for what is under way of the pass before, since buckets may be laid anew."""

    def of_model(self) -> list[Tensor]:
        """What is kept beside the model and like it, and is the same on all ranks."""
        return []

    def restart(self) -> None:  # noqa: B027  (most have nothing that knows of models)
        """All ranks have been given one model, and go on from there."""

    def anchor(self) -> dict[str, Tensor]:
        """The anchor of an outer loop by parameter."""
        method = self.loop.method.id
        raise ValueError(f"{method} has no outer loop, and so no anchor; write wire.consensus().model for the mean")

    def batch(self, samples: int) -> int:
        """How many samples to take where workers take so many on average."""
        return samples

    def report(self) -> dict[str, float]:
        """Further figures for `Wire.stats`."""
        return {}
