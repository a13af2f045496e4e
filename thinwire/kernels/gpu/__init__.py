"""The Triton tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.kernels.base import Kernels


def tiers() -> dict[str, Kernels]:
    """No passes yet."""
    return {}
