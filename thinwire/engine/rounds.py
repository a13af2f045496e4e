"""Rounds: when, during training, buckets are filled and exchanged. Gradients and models each have their own kind.

Packed       the buckets and their parameters, as the plan says
Rounds       the hooks that fill buckets, launch them and take the results
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import torch

from thinwire.engine.parameters import Trained, newcomer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from thinwire.core.method import Method
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.exchanger import Exchanger
    from thinwire.engine.skipping import Skipping


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
    optimizer: Optimizer | None  # DDP may do without one
    quiet: Callable[[], bool]  # whether a no_sync block is open
    skipping: Skipping

    def lr(self, group: int) -> float:
        """The learning rate of a parameter group."""
        return 1.0 if self.optimizer is None else float(self.optimizer.param_groups[group]["lr"])


class Rounds(ABC):
    """Base class. Its hooks on the optimizer refuse new parameters; `close` removes them."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.stepping = False  # inside optimizer.step
        self._known = {id(one.parameter) for members in packed.members for one in members}
        self._hooks: list[Removable] = []
        if packed.optimizer is not None:
            self._hooks = [
                packed.optimizer.register_step_pre_hook(self._step_begins),
                packed.optimizer.register_step_post_hook(self._step_ends),
            ]

    @abstractmethod
    def before_step(self, *, closure: bool) -> None:
        """The optimizer is about to step; with a `closure` its gradients are yet to be computed."""

    @abstractmethod
    def after_step(self) -> None:
        """The optimizer has stepped."""

    def check_switch(self, method: Method) -> None:  # noqa: B027  (DDP carries gradients alone)
        """Raise ValueError where another method cannot take over."""

    def check_no_sync(self) -> None:  # noqa: B027  (only DDP refuses it)
        """Raise ValueError if `Wire.no_sync` has no meaning."""

    def begin(self) -> None:  # noqa: B027  (gradients need no preparation)
        """Prepare to train: all replicas are equal now, and memories are as `init` left them."""

    def settle(self) -> None:  # noqa: B027  (nobody waits for gradients between steps)
        """End what other ranks may be waiting for, before all ranks meet elsewhere."""

    def gather(self) -> None:
        """Fill the buckets with the parameters as they are; for rounds whose gradients do not lie there."""
        for bucket, members in zip(self.packed.buckets, self.packed.members, strict=True):
            for view, one in zip(bucket.views, members, strict=True):
                view.copy_(one.parameter.detach())
            bucket.changed()  # whether it is finite is not known

    def models(self) -> list[Tensor]:
        """A copy of the parameters as they are, by bucket."""
        return [
            torch.cat([one.parameter.detach().flatten().float() for one in members])
            for members in self.packed.members
        ]

    def save(self) -> dict[str, Any]:
        """What a checkpoint needs beside the memories; tensors are put into the buckets' `extra`."""
        return {}

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:  # noqa: B027  (gradients save nothing)
        """Take up what `save` returned, after the memories and `extra` have been restored."""

    def report(self) -> dict[str, float]:
        """Further figures for `Wire.stats`."""
        return {}

    def close(self, *, failed: bool = False) -> None:
        """Remove the hooks; after a failure, wait for nobody."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        new = newcomer(optimizer, self._known)
        if new:
            raise ValueError(f"{new} was added or unfrozen after attach; write wire.detach(), then attach again")
        closure = next(iter([*args[1:], *kwargs.values()]), None) is not None
        self.before_step(closure=closure)
        self.packed.skipping.begin(self.packed.exchanger.round)
        self.stepping = True

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.stepping = False
        self.packed.skipping.end()
        self.after_step()
