"""Step hooks: what is called before and after a step that the loop takes, once.

torch calls an optimizer's hooks around every `step` of its classes. Where the step of a class calls that of the class
it is derived from, they are called twice, and it is one step still. A step that cannot move a parameter, and is taken
so that the optimizer has a state, is none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


def on_step(
    optimizer: Optimizer, before: Callable[[Optimizer, Any, Any], Any], after: Callable[[Optimizer, Any, Any], None]
) -> list[RemovableHandle]:
    """Register both. Where a compiled function calls `step`, torch would compile them as well; it is told not to.

    >>> class Derived(torch.optim.SGD):
    ...     def step(self, closure=None):
    ...         return super().step(closure)
    >>> optimizer = Derived([torch.nn.Parameter(torch.ones(1))])
    >>> hooks = on_step(optimizer, lambda *_: print("before"), lambda *_: print("after"))
    >>> optimizer.step()
    before
    after
    """

    only_state = False  # of the step at hand

    def begins(stepping: Optimizer, args: Any, kwargs: Any) -> Any:
        nonlocal only_state
        if _inside_another(stepping):
            return None
        only_state = _only_makes_state(stepping)
        return None if only_state else before(stepping, args, kwargs)

    def ends(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        if not only_state and not _inside_another(stepping):
            after(stepping, args, kwargs)

    return [
        optimizer.register_step_pre_hook(torch.compiler.disable(begins)),
        optimizer.register_step_post_hook(torch.compiler.disable(ends)),
    ]


def _only_makes_state(optimizer: Optimizer) -> bool:
    """Whether the step is that of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`, or one like it.

    The optimizer has no state yet, every learning rate is 0, and every gradient is there and is 0.
    """
    groups = optimizer.param_groups
    if optimizer.state or any(group.get("lr") != 0 for group in groups):
        return False
    params = [p for group in groups for p in group["params"] if p.requires_grad]
    grads = [p.grad for p in params if p.grad is not None]
    return len(grads) == len(params) and not any(grad.is_sparse or bool(_local(grad).any()) for grad in grads)


def _local(grad: Any) -> Any:
    """Of a DTensor, the part on this rank: looking at the whole would ask other ranks."""
    return getattr(grad, "to_local", lambda: grad)()


def _inside_another(optimizer: Optimizer) -> bool:
    """Whether torch's wrapper of `step` is on the stack twice for this optimizer: an error unwinds the stack, too."""
    frame, code, count = inspect.currentframe(), _wrapper(), 0
    while frame is not None and count < 2:
        if frame.f_code is code:
            args = frame.f_locals.get("args", ())
            count += bool(args) and args[0] is optimizer
        frame = frame.f_back
    return count == 2


@cache
def _wrapper() -> CodeType:
    """The code of what torch puts around every `step`."""
    hooked: Any = Optimizer.profile_hook_step(lambda *_: None)
    code: CodeType = hooked.__code__
    return code
