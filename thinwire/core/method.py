"""Method: an exchange, a schedule and an overlap policy. A value: compare it, print it, store it as JSON."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from typing import ClassVar, Literal, ParamSpec, final, get_args

from thinwire.core.config import Config, make_id
from thinwire.core.exchange import Exchange
from thinwire.core.registry import Registry
from thinwire.sync.schedule import Sync

P = ParamSpec("P")
Order = Literal["ready", "first-layer"]


@final
@dataclass(frozen=True)
class Overlap(Config):
    """What else happens meanwhile: how parameters are bucketed, in which order, how many exchanges are open.

    `order="ready"` launches buckets as backward fills them; `"first-layer"` what the next forward needs first.
    """

    name: ClassVar[str] = "overlap"
    bucket_mb: float = 25.0
    order: Order = "ready"
    in_flight: int = 2

    def __post_init__(self) -> None:
        if self.bucket_mb <= 0 or self.in_flight < 1:
            raise ValueError(
                f"Overlap(bucket_mb={self.bucket_mb}, in_flight={self.in_flight}): "
                "write bucket_mb > 0 and in_flight >= 1"
            )
        if self.order not in get_args(Order):
            raise ValueError(f"Overlap(order={self.order!r}): write one of {', '.join(map(repr, get_args(Order)))}")


@final
@dataclass(frozen=True)
class Method(Config):
    """One point in the space of the axes."""

    name: ClassVar[str] = "method"
    exchange: Exchange
    sync: Sync = field(default_factory=Sync)
    overlap: Overlap = field(default_factory=Overlap)
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.exchange, Exchange):
            raise TypeError(f"Method(exchange=...) takes an Exchange; got {self.exchange!r}")

    @property
    def id(self) -> str:
        """The id of the factory that made it, while it still makes the same; else a digest of its parts."""
        if self.label and METHODS.parse(self.label) == self:
            return self.label
        parts = replace(self, label="").to_json()
        return f"custom-{zlib.crc32(parts.encode()):08x}"


METHODS: Registry[Method] = Registry("method", "thinwire.methods")
"""Every paper's factory by its id."""


def method(name: str) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """Register a factory; the methods it makes carry `name` and the arguments that differ from the defaults."""

    def decorate(make: Callable[P, Method]) -> Callable[P, Method]:
        parameters = signature(make).parameters

        @wraps(make)
        def labelled(*args: P.args, **kwargs: P.kwargs) -> Method:
            bound = signature(make).bind(*args, **kwargs).arguments
            label = make_id(name, {k: (v, parameters[k].default) for k, v in bound.items()})
            return replace(make(*args, **kwargs), label=label)

        METHODS.add(name, labelled)
        return labelled

    return decorate
