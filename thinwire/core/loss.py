"""Loss: what somebody trains, checked before backward, whose error would be about something else."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def loss_of(found: Any, write: str) -> Tensor:
    """One number that has a gradient; an error ends with what to `write` instead."""
    if isinstance(found, Tensor) and found.numel() == 1 and found.requires_grad:
        return found
    got = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    if isinstance(found, Tensor) and found.numel() == 1:
        got = "a tensor without a gradient"
    raise ValueError(f"a loss is one number that has a gradient; got {got}: {write}")
