"""What C++ may use for a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.kernels.dispatch import select

if TYPE_CHECKING:
    from torch import Tensor


def means(x: Tensor) -> tuple[int, int]:
    """The threads, and the instructions (see `Kernels.vectors`)."""
    return torch.get_num_threads(), select(x).vectors
