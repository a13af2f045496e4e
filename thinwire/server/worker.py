"""WorkerHalf: what a worker of parameter servers sends, and what it makes of the answer.

What it remembers is a dict of tensors (`worker`), which belongs to the worker:

    lean        with `local_steps`: the gradient of the worker's own steps, before each of them
    elsewhere   another model at which the gradient of the same batch is computed, too
    push        what is sent; by default the gradient. With nothing to send, the worker goes on as it is
    precise     whether that goes up in float32, whatever the channel does
    sent        what the server decodes, told to rules that say `echoes`
    pull        the model to go on with; by default the answer

Every one of them works element by element, so that a model that is cut into pieces may be served piece by piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from thinwire.core.config import Config

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, State
    from thinwire.server.keys import Keyed


class Work(NamedTuple):
    """What a worker has when it pushes."""

    x: Tensor  # its model
    gradient: Tensor  # at x
    lr: Tensor  # of every element, or one for all
    key: Key  # seed, pushes so far, rank
    more: dict[str, Tensor]  # by name, the attributes of parameters that the rule `wants`; "again": see `elsewhere`


class WorkerHalf(Config):
    """Base class: gradients go up, and the answer is the model."""

    local_steps: ClassVar[bool] = False
    """Whether workers take steps of their own, and push after every `Sync(every=...)` of them."""
    before_step: ClassVar[bool] = False
    """Whether they then push before a step, which has its gradient already, and not after it."""
    echoes: ClassVar[bool] = False
    """Whether a worker is told what the server decodes of its push."""
    sparse: ClassVar[bool] = False
    """Whether `push` sends some elements only, as `Keyed`; answers then hold what has changed since the last one."""
    forgets: ClassVar[bool] = False
    """Whether a push is no place for what earlier ones lost: it is of other elements, or says what is missing."""
    anchor: ClassVar[str] = ""
    """Which of the tensors that a worker remembers is a model worth testing (`Wire.anchor`), if any."""

    @property
    def caches_keys(self) -> bool:
        """Whether a list of keys that was sent before is sent as its checksum."""
        return True

    @property
    def wants(self) -> tuple[str, ...]:
        """Attributes of parameters that `push` needs beside the gradient; the training loop sets them."""
        return ()

    def worker(self, x: Tensor, workers: int) -> State:
        """What a worker remembers, from the common model on."""
        return {}

    def lean(self, x: Tensor, gradient: Tensor, state: State) -> Tensor:
        """The gradient that a worker's own step takes, where it takes some."""
        return gradient

    def places(self, key: Key, n: int) -> Tensor | None:
        """Of n elements, those that `push` with this key sends unless it says otherwise; they need not be named."""
        return None

    def elsewhere(self, state: State) -> Tensor | None:
        """A model at which the gradient of the batch is needed, too, in all shards; it is `work.more["again"]`."""
        return None

    def push(self, work: Work, state: State) -> Tensor | Keyed | None:
        """What is sent, or None, then in all shards."""
        return work.gradient

    def precise(self, state: State) -> bool:
        """Whether what `push` has just returned goes up in float32."""
        return False

    def sent(self, decoded: Tensor, state: State) -> None:
        """Take notice of what the server has received."""

    def pull(self, x: Tensor, answer: Tensor, state: State) -> Tensor:
        """The model to go on with, given the worker's own and the server's answer."""
        return answer
