"""Sync: when an exchange happens and how old its result may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from thinwire.core.adapt import Adapt
from thinwire.core.batches import Batches
from thinwire.core.config import Config
from thinwire.core.signals import Grad, Signal


@final
@dataclass(frozen=True)
class Sync(Config):
    """Exchange `of` every `every` steps, with results at most `staleness` late, after `warmup` uncompressed steps.

    `staleness` means one thing everywhere: 0 is bulk-synchronous; s on an all-reduce applies results up to s steps
    late; s on a parameter server is SSP; None is asynchronous. `batches` says how many samples a step takes, where
    the training loop asks (`Wire.batch`). `adapt` chooses a compressor for each tensor, again and again.
    """

    name: ClassVar[str] = "sync"
    of: Signal = field(default_factory=Grad)
    every: int = 1
    staleness: int | None = 0
    warmup: int = 0
    batches: Batches | None = None
    adapt: Adapt | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"Sync(every={self.every}) never exchanges; write Sync(every=1) for every step")
        if self.staleness is not None and self.staleness < 0:
            raise ValueError(f"Sync(staleness={self.staleness}): write 0, a bound in steps, or None for asynchronous")
        if self.warmup < 0:
            raise ValueError(f"Sync(warmup={self.warmup}): write the number of uncompressed steps, 0 or more")
        if self.every > 1 and isinstance(self.of, Grad):
            raise ValueError(
                f"Sync(of=Grad(), every={self.every}) would drop the gradients between exchanges; "
                f"write Sync(of=Param(), every={self.every}) for local SGD, or accumulate gradients in the loop"
            )
        if self.adapt is not None and (self.of.models or self.staleness != 0 or self.batches is not None):
            raise ValueError(
                "Sync(adapt=...) chooses between two rounds of gradients, of which none is under way; write "
                "Sync(adapt=...) without of=Param(), staleness or batches"
            )
