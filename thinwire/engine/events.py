"""What happens in a worker's training, as a schedule hears of it: `event = await loop.next(StepBegins, Ends)`.

The driver tells a schedule of the events that it waits for, and of no others. While an optimizer steps:

    Gradient* BackwardEnds AllLaunched      a backward pass that exchanges
    Overdue AllLaunched                     before a step that no such pass came before
    StepBegins StepEnds                     the optimizer's step
    Idle                                    where models are exchanged: this rank has ended its batches (`Wire.join`)
    Settle                                  all ranks are about to meet elsewhere
    Ends                                    the wire is closed, and nothing has failed
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.filling import Place


@final
@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient of one parameter is complete."""

    place: Place
    grad: Tensor


@final
@dataclass(frozen=True)
class BackwardEnds:
    """No more gradients come in this pass."""


@final
@dataclass(frozen=True)
class Overdue:
    """The optimizer is about to step, and no backward pass has exchanged since its last step."""


@final
@dataclass(frozen=True)
class AllLaunched:
    """Every wire that hears this pass has launched what it had left, so that none waits for another in vain."""


@final
@dataclass(frozen=True)
class StepBegins:
    """The optimizer is about to step; with a `closure` it computes its gradients itself."""

    closure: bool = False


@final
@dataclass(frozen=True)
class StepEnds:
    """The optimizer has stepped."""


@final
@dataclass(frozen=True)
class Settle:
    """End what other ranks may be waiting for."""


@final
@dataclass(frozen=True)
class Idle:
    """A rank has ended its batches, and takes part in the next round of those that have not."""


@final
@dataclass(frozen=True)
class Ends:
    """The last event."""


Event: TypeAlias = Gradient | BackwardEnds | Overdue | AllLaunched | StepBegins | StepEnds | Idle | Settle | Ends


@final
class Next:
    """The next event of one of these kinds."""

    def __init__(self, kinds: tuple[type[Event], ...]) -> None:
        self.kinds = kinds

    def __await__(self) -> Generator[Next, Event, Any]:
        return (yield self)
