"""Signals: which vector of the training loop is exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from thinwire.core.config import Config


class Signal(Config):
    """Base of the signals."""

    models: ClassVar[bool] = False  # whether ranks have models of their own between two exchanges
    outer_loop: ClassVar[bool] = False  # whether what is exchanged is a gradient for an outer optimizer
    lasts: ClassVar[bool] = False  # whether a result is of use in a later step than its own

    @property
    def parts(self) -> int:
        """Fragments of the model that are exchanged by themselves."""
        return 1

    def too_few_rounds(self, steps: int, every: int) -> str:
        """What so many steps in all, with a round after `every`, are too few for: a sentence; empty if they do."""
        return ""


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
