"""UnderWay: what `p.grad` is between a backward pass and the step, while the gradient is being exchanged.

Whatever looked at it then, or changed it, would find a part of what it is to be: clipping, a GradScaler, a second
backward pass that adds to it. All of that is refused. It may be set to None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from thinwire.engine.parameters import Trained

MESSAGE = (
    "gradients are on their way until the next forward pass, and cannot be read, clipped, scaled or added to "
    "({what}); write Overlap(into_forward=None) for a loop that does so in every step, wire.settle() before it in a "
    "loop that does so now and then, or, to accumulate gradients, `with wire.no_sync():` around all backward passes "
    "but the last"
)


@final
class UnderWay(Tensor):
    """Shape, dtype and device of a gradient, and nothing else."""

    @staticmethod
    def __new__(cls, like: Tensor) -> UnderWay:
        """In the place of a gradient of this parameter."""
        made: UnderWay = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:  # type: ignore[override]
        raise RuntimeError(MESSAGE.format(what=func))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"UnderWay(shape={tuple(self.shape)})"


@final
class Hidden:
    """Takes the place of the gradients of these parameters; the tensors for it are made once."""

    def __init__(self, members: Sequence[Trained]) -> None:
        self._members = members
        self._made: list[UnderWay] = []

    def hide(self) -> None:
        """Put them where there are gradients."""
        self._made = self._made or [UnderWay(p) for p, _ in self._members]
        for (p, _), instead in zip(self._members, self._made, strict=True):
            if p.grad is not None:
                p.grad = instead
