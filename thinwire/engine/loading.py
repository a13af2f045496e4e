"""Loading: whether somebody loads another model into an attached one before the first step.

An outer loop has an anchor and servers have a model, both as `attach` found them, and training goes back to these.
What else a loop writes into the model, as one does that clips weights, is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from thinwire.engine.local import local
from thinwire.engine.uncopied import Uncopied

if TYPE_CHECKING:
    from torch import Tensor, nn


@final
class Loading:
    """Hears of `load_state_dict` of the model or of a part of it; a step after that is refused, until `over`.

    Parameters are copied when somebody is about to load for the first time: who loads the same again, or puts back
    what was there, has lost nothing.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], kept: str) -> None:
        self._parameters, self._kept = parameters, kept
        self._found: list[Tensor] = []
        self._hooks = [one.register_load_state_dict_pre_hook(Uncopied(self._hear)) for one in model.modules()]

    def check(self) -> None:
        """Raise ValueError if another model was loaded; otherwise the first step begins."""
        if any(not local(p).equal(found) for p, found in zip(self._parameters, self._found, strict=False)):
            raise ValueError(
                f"a model was loaded after attach, and {self._kept} is still what attach found; load the model "
                "before attach, or write wire.load_state_dict(state) after it"
            )
        self.over()

    def over(self) -> None:
        """Hear no more of it."""
        self.remove()
        self._found = []

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hear(self, *args: Any) -> None:
        if not self._found:
            self._found = [local(p).detach().clone() for p in self._parameters]
