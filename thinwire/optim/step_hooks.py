"""Step hooks: what is called before and after a step that the loop takes, once.

torch calls an optimizer's hooks around every `step` of its classes. Where the step of a class calls that of the class
it is derived from, they are called twice, and it is one step still.
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

    def begins(stepping: Optimizer, args: Any, kwargs: Any) -> Any:
        return None if _inside_another(stepping) else before(stepping, args, kwargs)

    def ends(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        if not _inside_another(stepping):
            after(stepping, args, kwargs)

    return [
        optimizer.register_step_pre_hook(torch.compiler.disable(begins)),
        optimizer.register_step_post_hook(torch.compiler.disable(ends)),
    ]


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
