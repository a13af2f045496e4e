"""Rounds: when, during training, buckets are filled and exchanged. Gradients and models each have their own.

Packed       buckets and who is in them, as the plan says
Rounds       the hooks that fill buckets, launch them and take the results
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from thinwire.engine.parameters import Trained, newcomer

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.engine.bucket import Bucket
    from thinwire.engine.exchanger import Exchanger


class Removable(Protocol):
    """A hook's handle."""

    def remove(self) -> None:
        """Take the hook away."""


@final
@dataclass(frozen=True, eq=False)
class Packed:
    """What one method works on."""

    exchanger: Exchanger
    buckets: list[Bucket]
    members: list[list[Trained]]  # by bucket, in the order of its views
    optimizer: Optimizer
    quiet: Callable[[], bool]  # inside no_sync


class Rounds(ABC):
    """Base: hooks on the optimizer that refuse newcomers, and go with `close`."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self._known = {id(one.parameter) for members in packed.members for one in members}
        self._hooks: list[Removable] = [packed.optimizer.register_step_pre_hook(self._step_begins)]

    @abstractmethod
    def before_step(self) -> None:
        """The optimizer is about to step."""

    def begin(self) -> None:  # noqa: B027  (gradients have nothing to begin with)
        """Every replica is equal now, and memories are as `init` left them."""

    def settle(self) -> None:  # noqa: B027  (as `begin`)
        """End what ranks may be waiting for, before they meet elsewhere."""

    def gather(self) -> None:
        """Fill the buckets with the parameters as they are."""
        for bucket, members in zip(self.packed.buckets, self.packed.members, strict=True):
            for view, one in zip(bucket.views, members, strict=True):
                view.copy_(one.parameter.detach())

    def save(self) -> dict[str, Any]:
        """What a checkpoint needs beside the memories; tensors are put into the buckets' `extra`."""
        return {}

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:  # noqa: B027  (as `begin`)
        """Take up what `save` left, after the memories and `extra` were restored."""

    def report(self) -> dict[str, float]:
        """Figures of its own for `Wire.stats`."""
        return {}

    def close(self, *, failed: bool = False) -> None:
        """Remove the hooks; after a failure wait for nobody."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        new = newcomer(optimizer, self._known)
        if new:
            raise ValueError(f"{new} wants a gradient since attach; write wire.detach(), then attach again")
        self.before_step()
