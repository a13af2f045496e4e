"""Whether the C++ modules were compiled when thinwire was installed.

A wheel has them. An installation from source where there was no compiler does not, and holds a module `_uncompiled`
that says why (CMakeLists.txt writes it). Everything then runs in plain torch, with the same bits and more slowly;
only the entropy codes have no second implementation.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

AGAIN = "pip install --force-reinstall --no-deps --no-cache-dir thinwire"


@cache
def uncompiled() -> str | None:
    """Why there are no C++ modules, or None where they were compiled."""
    try:
        return str(import_module("thinwire.kernels._uncompiled").WHY)
    except ModuleNotFoundError:
        return None


def slow(why: str) -> str:
    """What to tell the user once, when kernels are first asked for."""
    return (
        f"thinwire runs its reference kernels, which are slower, because {why} when it was installed; "
        f"change that and write `{AGAIN}`"
    )


def refusal(what: str, why: str) -> str:
    """What to tell a user who asks for what only C++ has."""
    return (
        f"{what} are C++ alone, and {why} when thinwire was installed: change that and write `{AGAIN}`, or choose "
        "fields of equal width (code='bits' in the methods that have a code)"
    )
