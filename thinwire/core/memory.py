"""Memory: what the two ends of a channel remember, one half at the sender and one at the receiver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.core.config import Config

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


class Memory(Config, ABC):
    """Sender: `before`, then `after`. Receiver: `receive`, linear in what it gets."""

    skips: ClassVar[bool] = False
    """`before` may return None, and nothing is sent."""

    @abstractmethod
    def init(self, like: Tensor) -> State:
        """The state of one bucket, zero at the start."""

    @abstractmethod
    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """What to encode in place of `x`; None when nothing is worth sending."""

    @abstractmethod
    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """The sender's update, in place; `sent` is what the receivers decode."""

    @abstractmethod
    def receive(self, got: Tensor, state: State) -> Tensor:
        """The receiver's value from the (averaged) decoded payloads."""


@final
@dataclass(frozen=True)
class NoMemory(Memory):
    """Remembers nothing."""

    name: ClassVar[str] = "none"

    def init(self, like: Tensor) -> State:
        """No state."""
        return {}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """`x` itself."""
        return x

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """Nothing."""

    def receive(self, got: Tensor, state: State) -> Tensor:
        """What came."""
        return got
