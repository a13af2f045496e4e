"""What a GPU does at once and Triton's interpreter takes long for: without a GPU, for `--long` alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

LONG: list[Any] = [] if torch.cuda.is_available() else [pytest.mark.long]
"""Marks of such a case."""


def cases(of: list[Any], few: tuple[Any, ...]) -> list[Any]:
    """All of them on a GPU and with `--long`, and otherwise those whose id or value is among the few."""
    return [pytest.param(c, marks=[] if getattr(c, "id", c) in few else LONG) for c in of]
