"""Signals: which vector of the training loop is exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from thinwire.core.config import Config


class Signal(Config):
    """Base of the signals."""

    models: ClassVar[bool] = False  # whether ranks have models of their own between two exchanges
    outer: ClassVar[bool] = False  # whether what is exchanged is a gradient for an outer optimizer
    lasts: ClassVar[bool] = False  # whether a result is of use in a later step than its own


@final
@dataclass(frozen=True)
class Grad(Signal):
    """The gradient g, before the optimizer sees it."""

    name: ClassVar[str] = "grad"
    lasts: ClassVar[bool] = True


@final
@dataclass(frozen=True)
class Param(Signal):
    """The parameters, after the local step: local SGD and gossip."""

    name: ClassVar[str] = "param"
    models: ClassVar[bool] = True


@final
@dataclass(frozen=True)
class Momentum(Signal):
    """The momentum buffer."""

    name: ClassVar[str] = "momentum"


@final
@dataclass(frozen=True)
class Delta(Signal):
    """The pseudo-gradient x_start - x_now of a round of local steps, for an outer Nesterov step."""

    name: ClassVar[str] = "delta"
    models: ClassVar[bool] = True
    outer: ClassVar[bool] = True
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.outer_lr <= 0 or not 0 <= self.outer_momentum < 1:
            raise ValueError(
                f"Delta(outer_lr={self.outer_lr}, outer_momentum={self.outer_momentum}): "
                "write outer_lr > 0 and 0 <= outer_momentum < 1"
            )
