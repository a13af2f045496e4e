"""Loading: whether somebody loads a model into an attached one before the first step.

An outer loop has an anchor and servers have a model, both as `attach` found them, and training goes back to these.
What else a loop writes into the model, as one does that clips weights, is its own affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from thinwire.engine.uncopied import Uncopied

if TYPE_CHECKING:
    from torch import nn


@final
class Loading:
    """Hears of `load_state_dict` of the model or of a part of it; until `over`, a step after that is refused."""

    def __init__(self, model: nn.Module, kept: str) -> None:
        self._kept, self._loaded = kept, False
        self._hooks = [one.register_load_state_dict_post_hook(Uncopied(self._hear)) for one in model.modules()]

    def check(self) -> None:
        """Raise ValueError if a model was loaded; otherwise the first step begins."""
        if self._loaded:
            raise ValueError(
                f"a model was loaded after attach, and {self._kept} is still what attach found; load the model "
                "before attach, or write wire.load_state_dict(state) after it"
            )
        self.over()

    def over(self) -> None:
        """Hear no more of it."""
        self.remove()
        self._loaded = False

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hear(self, module: nn.Module, keys: Any) -> None:
        self._loaded = True
