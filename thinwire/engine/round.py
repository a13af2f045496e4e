"""Round: one bucket on its way, with what is known of it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from thinwire.engine.agreement import SOUND, Agreed, largest
from thinwire.kernels.base import TAME

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.clock import Clock
    from thinwire.core.exchange import Exchange
    from thinwire.core.types import Key, Layout
    from thinwire.core.verdicts import Verdicts
    from thinwire.engine.bucket import Bucket, Chunk
    from thinwire.engine.handover import Handover


class Facts(NamedTuple):
    """What a round asks of its exchange, looked up once."""

    agrees: bool
    carries_nan: bool
    bare: bool  # a plain sum, of which nothing is kept by chunk
    measurable: bool
    limit: float

    @classmethod
    def of(cls, exchange: Exchange) -> Facts:
        """The facts of an exchange."""
        bare = exchange.carries_nan and not exchange.remembers
        return cls(exchange.agrees, exchange.carries_nan, bare, exchange.measurable, exchange.limit)


class Promise(NamedTuple):
    """A `Context` but for its `Comm`, which is that of the lane whose turn it will be."""

    layout: Layout
    key: Key
    clock: Clock
    lr: float
    before: Tensor | None
    motion: tuple[float, ...]
    verdicts: Verdicts | None = None


class Before(NamedTuple):
    """What a chunk's memory held before an exchange that may have to be taken back."""

    chunk: Chunk
    lr: float | None
    state: Mapping[str, Tensor]

    @classmethod
    def of(cls, chunk: Chunk) -> Before:
        """What it holds."""
        return cls(chunk, chunk.lr, {name: tensor.clone() for name, tensor in chunk.state.items()})

    def kept_finite(self, x: Tensor, limit: float) -> bool:
        """Whether the result `x` and the memory of this rank are finite."""
        tops = [largest(tensor) for tensor in self.chunk.state.values() if tensor.is_floating_point()]
        self.chunk.heavy = any(top > limit for top in tops)
        return all(math.isfinite(top) for top in (largest(x), *tops))

    def restore(self) -> None:
        """As if there had been no exchange."""
        self.chunk.lr = self.lr
        for name, tensor in self.state.items():
            self.chunk.state[name].copy_(tensor)


@final
@dataclass(eq=False)
class Round:
    """One bucket on its way. `x` is its vector, and holds the result in the end."""

    number: int
    bucket: Bucket
    x: Tensor
    lr: float
    before: Tensor | None  # the model before the local step, where models are exchanged
    handover: Handover
    used: bytes  # what each tensor holds (engine/agreement.py)
    tame: bool  # whether it is known to have no large element on this rank
    since: int = 0  # rounds that this rank has had since its last step
    limit: float = TAME  # up to which magnitude the result is finite for certain
    heavy: bool = False  # whether a memory holds something larger
    agreement: Awaitable[object] | None = None  # after it, `agreed` holds; None where ranks need not agree
    agreed: Agreed = SOUND
    verdicts: list[Verdicts] = field(default_factory=list)  # of its chunks, where they are computed on a GPU
    parts: list[Awaitable[object]] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    launched: float = 0.0  # when
    owes: bool = False  # whether it waits to be part of an agreement
    before_it: list[Before] = field(default_factory=list)  # of its chunks, where the result may not be finite
    waits: bool = False  # whether it sends nothing before its agreement
    idle: bool = False  # whether this rank has nothing of its own in it, since its batches have ended

    @property
    def skipped(self) -> bool:
        """Whether nothing has travelled, because no rank had anything new."""
        return self.waits and not self.agreed.news
