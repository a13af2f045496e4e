"""Ready: a Triton kernel that is launched without Triton's look at everything that could have changed.

Before each launch Triton binds the arguments, names the variant and compares every global that the source reads. A
step of training launches hundreds of kernels, and these look-ups then take longer than the work. Here a variant is found by a short key and started by its own compiled object; only the first
launch of a variant goes through Triton. Under its interpreter all do.

Triton compiles a variant for the constants, for the types of arguments, and for what it knows of their values: which
addresses and integers are multiples of 16, and which integers are 1. The key holds all of that, for every argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import Tensor

Grid = tuple[int, ...]
SMALL = 1 << 31


@final
class Ready:
    """`kernel[grid](...)`, as for the Triton kernel that it wraps; constants may be given by position or by name."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._names: list[str] = list(kernel.arg_names)
        self._constant = [bool(p.is_constexpr) for p in getattr(kernel, "params", ())]
        self._found: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        def run(*args: Any, **named: Any) -> None:
            key = (
                args[0].get_device(),
                tuple(named.items()),
                *[a if fixed else kind(a) for a, fixed in zip(args, self._constant, strict=False)],
            )
            found = self._found.get(key)
            if found is None:
                compiled = self.kernel[grid](*args, **named)
                if compiled is not None:  # the interpreter compiles nothing
                    rest = tuple(named[name] for name in self._names[len(args) :])
                    self._found[key] = compiled, rest
                return
            compiled, rest = found
            compiled[(*grid, 1, 1)[:3]](*args, *rest)

        return run


def kind(a: Any) -> Any:
    """What a variant depends on.

    >>> kind(48), kind(7), kind(1), kind(0.5)
    ((True, False, True), (False, False, True), (False, True, True), <class 'float'>)
    """
    what = type(a)
    if what is int:  # before tensors: to ask whether a number is one takes longer than to ask whether a tensor is
        return a % 16 == 0, a == 1, -SMALL <= a < SMALL
    if what is float:
        return what
    return (a.dtype, a.data_ptr() % 16 == 0) if isinstance(a, Tensor) else what
