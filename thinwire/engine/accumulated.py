"""Accumulated: a hook that is told of a parameter's gradient when all other hooks on the parameter have run.

torch calls such hooks in the order in which they were registered. One that came after attach and changes `p.grad`, as
to clip it, would change it when it is on its way already. So the wire's hook moves behind those that it finds after
it. The list of this call has been made by then: this one time, the gradient is complete when the pass ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from thinwire.engine.misuse import refuse_compiled_backward

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle


def when_accumulated(p: Tensor, tell: Callable[[], Callable[[Tensor, bool], None] | None]) -> RemovableHandle:
    """Tell `tell()` of the gradient of `p` in every backward pass, and whether it is complete, until it is removed.

    It should keep nothing alive, as a `weakref.WeakMethod`: Python's collector does not see what a parameter's hooks
    refer to. Where a compiled function calls `backward`, torch would compile the hook as well; it is told not to.
    """

    def accumulated(p: Tensor) -> None:
        refuse_compiled_backward()
        told = tell()
        if told is not None:
            told(p, _last(p, handle.id))

    handle: RemovableHandle = p.register_post_accumulate_grad_hook(torch.compiler.disable(accumulated))
    return handle


def _last(p: Any, hook: int) -> bool:
    """Whether this hook is the last one on `p`, as it is from here on."""
    row = p._post_accumulate_grad_hooks
    if next(reversed(row)) == hook:
        return True
    row[hook] = row.pop(hook)
    return False
