"""Uncopied: a hook on a model that neither a copy of the model nor a file with it has.

`copy.deepcopy` and `pickle` take the hooks of a module along. Those of a wire belong to the attached model alone: in
their place a copy gets a function that does nothing, out of Python's own library, so that a file with the whole model
can be read where thinwire is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final


@final
class Uncopied:
    """Calls `hook`, and `copied` when somebody copies or saves the model, who may be told not to by an error.

    >>> import copy
    >>> hook = Uncopied(print)
    >>> hook("a", "b")
    a b
    >>> copy.deepcopy(hook)("a", "b")
    """

    def __init__(self, hook: Callable[..., None], copied: Callable[[], None] | None = None) -> None:
        self._hook, self._copied = hook, copied

    def __call__(self, *args: Any) -> None:
        self._hook(*args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._copied is not None:
            self._copied()
        return getattr, (nullcontext(), "__exit__")  # which takes any arguments and returns None
