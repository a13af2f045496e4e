"""Memory: what the two ends of a channel remember, one half at the sender and one at the receiver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from thinwire.core.config import Config
from thinwire.core.slots import Slots, make
from thinwire.core.types import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


class Feedback(NamedTuple):
    """p = x + alpha e is encoded, and e = beta e + (x - q) kept, q being p as the receivers decode it."""

    alpha: float
    beta: float

    def growth(self, omega: float) -> float:
        """alpha^2 omega + (beta - alpha)^2: the factor of the squared residual from step to step."""
        return self.alpha**2 * omega + (self.beta - self.alpha) ** 2


class Memory(Config, ABC):
    """The sender calls `before`, then `after`; the receiver calls `receive`, which is linear in what it gets.

    A memory that `skips` is asked twice whether a round is worth sending: by `before`, and by `worth` once it can see
    what the receivers would decode.

    Each half has its own state, and declares what is in it (`thinwire.core.slots`).
    """

    skips: ClassVar[bool] = False
    """Whether `before` may return None, or `worth` False, so that nothing is sent."""
    needs_scale: ClassVar[bool] = False
    """Whether what is decoded must grow with what was sent, since the memory would otherwise never settle."""
    settles: ClassVar[bool] = False
    """Whether what is sent tends to zero as vectors settle: it is what a prediction at both ends has missed."""
    for_models: ClassVar[bool] = False
    """Whether it may stand around models, which do not tend to zero. One that settles keeps its prediction as
    "shift"."""

    @abstractmethod
    def slots(self) -> Slots:
        """What the sender's state holds."""

    def receiver_slots(self) -> Slots:
        """What the receiver's state holds; nothing, unless it predicts."""
        return {}

    @final
    def init(self, like: Tensor) -> State:
        """The sender's state for a vector like `like`, at the start."""
        return make(self.slots(), Layout.flat(like.numel()), like.device)

    @property
    @final
    def remembers(self) -> bool:
        """Whether there is anything to remember."""
        return bool(self.slots()) or self.predicts

    @property
    @final
    def predicts(self) -> bool:
        """Whether the receiver has a half too: a prediction, which needs the mean over all senders.

        Without one, `receive` returns what it gets.
        """
        return bool(self.receiver_slots())

    @property
    def whole(self) -> bool:
        """Whether all that was lost, or sent, counts in full: it has no factor below 1."""
        return True

    @property
    def feedback(self) -> Feedback | None:
        """Where its equations are those of `Feedback`, with e as "residual": an encoder does them in its own pass."""
        return None

    def growth(self, omega: float) -> float:
        """The factor by which the square of what it keeps of errors changes per step, if a step loses `omega` of it.

        Errors grow without end from 1 on. 0 if there is nothing to grow.
        """
        return 0.0

    def steadied(self, omega: float) -> Memory:
        """The same with settings under which errors do not grow."""
        return self

    @property
    def motion(self) -> int:
        """How many past steps of the parameters `worth` wants to see in `Context.motion`."""
        return 0

    @property
    def plain(self) -> Memory:
        """What must be kept where a vector is sent whole: momentum, but no residual. Its state has the same names."""
        return NoMemory()

    def rescale(self, state: State, factor: float) -> None:
        """Adapt the sender's state, in place, to a learning rate that has changed by 1/`factor`."""

    @abstractmethod
    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """The vector to encode instead of `x`; None when nothing is worth sending."""

    def worth(self, x: Tensor, sent: Tensor, state: State, ctx: Context) -> bool:
        """Whether `sent`, which the receivers would decode, is worth sending; if not, `after` is not called."""
        return True

    @abstractmethod
    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """The sender's update, in place; `sent` is what the receivers decode."""

    @abstractmethod
    def receive(self, got: Tensor, state: State) -> Tensor:
        """The receiver's value from the (averaged) decoded payloads; `state` is its own half."""


@final
@dataclass(frozen=True)
class NoMemory(Memory):
    """Remembers nothing."""

    name: ClassVar[str] = "none"
    for_models: ClassVar[bool] = True

    def slots(self) -> Slots:
        """No state."""
        return {}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        """`x` itself."""
        return x

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        """Does nothing."""

    def receive(self, got: Tensor, state: State) -> Tensor:
        """What arrived, unchanged."""
        return got
