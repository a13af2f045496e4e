"""Round: one bucket on its way, with what is known of it."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from thinwire.engine.agreement import SOUND, Agreed

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.clock import Clock
    from thinwire.core.exchange import Exchange
    from thinwire.core.types import Key, Layout
    from thinwire.core.verdicts import Verdicts
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.handover import Handover


class Facts(NamedTuple):
    """What a round asks of its exchange, looked up once."""

    agrees: bool
    carries_nan: bool
    bare: bool  # a plain sum, of which nothing is kept by chunk
    measurable: bool

    @classmethod
    def of(cls, exchange: Exchange) -> Facts:
        """The facts of an exchange."""
        bare = exchange.carries_nan and not exchange.remembers
        return cls(exchange.agrees, exchange.carries_nan, bare, exchange.measurable)


class Promise(NamedTuple):
    """A `Context` but for its `Comm`, which is that of the lane whose turn it will be."""

    layout: Layout
    key: Key
    clock: Clock
    lr: float
    before: Tensor | None
    motion: tuple[float, ...]
    verdicts: Verdicts | None = None


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
    finite: bool | None  # whether it is finite on this rank; None if unknown
    since: int = 0  # rounds that this rank has had since its last step
    agreement: Awaitable[object] | None = None  # after it, `agreed` holds; None where ranks need not agree
    agreed: Agreed = SOUND
    verdicts: list[Verdicts] = field(default_factory=list)  # of its chunks, where they are computed on a GPU
    parts: list[Awaitable[object]] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    launched: float = 0.0  # when
    owes: bool = False  # whether it waits to be part of an agreement
    waits: bool = False  # whether it sends nothing before its agreement
    idle: bool = False  # whether this rank has nothing of its own in it, since its batches have ended

    @property
    def skipped(self) -> bool:
        """Whether nothing has travelled, because no rank had anything new."""
        return self.waits and not self.agreed.news
