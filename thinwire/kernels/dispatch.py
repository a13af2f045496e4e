"""Which tier runs: the fastest that can hold the tensor, unless one is named."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING

from thinwire.kernels.compiled import slow, uncompiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from thinwire.kernels.base import Kernels

VARIABLE = "THINWIRE_KERNELS"
_forced: ContextVar[str | None] = ContextVar("thinwire_kernels", default=None)


@cache
def _host() -> dict[str, Kernels]:
    from thinwire.kernels.reference import ReferenceKernels  # noqa: PLC0415

    reference, why = ReferenceKernels(), uncompiled()
    if why is not None:
        warnings.warn(slow(why), stacklevel=2)
        return {"reference": reference, "cpu": reference}
    from thinwire.kernels.cpu import tiers  # noqa: PLC0415  (the extension loads on first use)

    cpu = tiers()
    return {"reference": reference, "cpu": next(iter(cpu.values())), **cpu}


@cache
def _tiers() -> dict[str, Kernels]:
    """All of them. Apart from `_host`, since Triton takes a second to import and CPU tensors do not need it."""
    from thinwire.kernels.gpu import tiers  # noqa: PLC0415

    return _host() | tiers()


@cache
def _asked() -> str | None:
    """Read once, since it is asked for many times per step."""
    return os.environ.get(VARIABLE)


def names() -> list[str]:
    """Every tier that runs on this machine; `cpu` stands for the fastest on a CPU."""
    return list(_tiers())


def get(name: str) -> Kernels:
    """The tier called `name`."""
    found = _host().get(name) or _tiers().get(name)
    if found is None:
        raise ValueError(
            f"no kernels called '{name}' on this machine; write {VARIABLE}=<one of {', '.join(names())}>"
        )
    return found


def select(x: Tensor) -> Kernels:
    """The tier for `x`: the forced one if there is one, otherwise C++ on the CPU and Triton on a GPU.

    Plain torch serves other devices, and GPUs where Triton cannot be imported.
    """
    name = _forced.get() or _asked()
    if name is not None:
        return get(name)
    if x.is_cpu:
        return _host()["cpu"]
    return _tiers()["gpu"] if x.is_cuda and "gpu" in _tiers() else get("reference")


@contextmanager
def force(name: str) -> Iterator[Kernels]:
    """Use the tier called `name` inside the block."""
    kernels = get(name)
    token = _forced.set(name)
    try:
        yield kernels
    finally:
        _forced.reset(token)
