"""Which tier runs: the fastest that can hold the tensor, unless one is named."""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from thinwire.kernels.base import Kernels

VARIABLE = "THINWIRE_KERNELS"
_forced: ContextVar[str | None] = ContextVar("thinwire_kernels", default=None)


@cache
def _tiers() -> dict[str, Kernels]:
    from thinwire.kernels.cpu import tiers  # noqa: PLC0415  (the extension loads on first use)
    from thinwire.kernels.reference import ReferenceKernels  # noqa: PLC0415

    cpu = tiers()
    return {"reference": ReferenceKernels(), "cpu": next(iter(cpu.values())), **cpu}


@cache
def _asked() -> str | None:
    """Read once, since it is asked for many times per step."""
    return os.environ.get(VARIABLE)


def names() -> list[str]:
    """Every tier that runs on this machine; `cpu` stands for the fastest of the `cpu-...` ones."""
    return list(_tiers())


def get(name: str) -> Kernels:
    """The tier called `name`."""
    tiers = _tiers()
    if name not in tiers:
        raise ValueError(f"no kernels called '{name}' on this machine; write {VARIABLE}=<one of {', '.join(tiers)}>")
    return tiers[name]


def select(x: Tensor) -> Kernels:
    """The tier for `x`: the forced one if there is one, otherwise C++ for CPU tensors and plain torch for others."""
    name = _forced.get() or _asked()
    return get(name or ("cpu" if x.device.type == "cpu" else "reference"))


@contextmanager
def force(name: str) -> Iterator[Kernels]:
    """Use the tier called `name` inside the block."""
    kernels = get(name)
    token = _forced.set(name)
    try:
        yield kernels
    finally:
        _forced.reset(token)
