"""Adapters to other packages, each imported when it is used: `tw.integrations.transformers`, `torchft` and others."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import an adapter, and with it its framework."""
    if name not in __dir__():
        raise AttributeError(f"thinwire.integrations has no {name!r}; there are {', '.join(__dir__())}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """The adapters, whether or not their frameworks are installed."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
