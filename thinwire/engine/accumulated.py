"""Accumulated: a hook that is told of a parameter's gradient when all other hooks on the parameter have run.

torch calls such hooks in the order in which they were registered. One that came after attach and changes `p.grad`, as
to clip it, would change it when it is on its way already. A gradient whose hooks have not all run is complete when
the pass ends, and the wire's hook then moves behind the others; not earlier, because FSDP2 goes through the hooks
themselves, and not through a list that was made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from thinwire.engine.misuse import refuse_compiled_backward

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle


def when_accumulated(p: Tensor, tell: Callable[[], Callable[[Tensor, int | None], None] | None]) -> RemovableHandle:
    """Tell `tell()` of the gradient of `p` in every backward pass, until it is removed.

    If other hooks are still to run, it is also told the number of this one, for `move_last`. It should keep nothing
    alive, as a `weakref.WeakMethod`: Python's collector does not see what a parameter's hooks refer to. Where a
    compiled function calls `backward`, torch would compile the hook as well; it is told not to.
    """

    def accumulated(p: Any) -> None:
        refuse_compiled_backward()
        told = tell()
        row = p._post_accumulate_grad_hooks
        if told is None or row is None:  # None: another hook returned a tensor in place of p, which torch refuses
            return
        told(p, None if next(reversed(row)) == handle.id else handle.id)

    handle: RemovableHandle = p.register_post_accumulate_grad_hook(torch.compiler.disable(accumulated))
    return handle


def move_last(p: Any, hook: int) -> None:
    """From now on this hook is called after all others on `p`."""
    row = p._post_accumulate_grad_hooks
    if hook in row:
        row[hook] = row.pop(hook)
