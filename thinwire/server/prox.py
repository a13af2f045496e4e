"""Proximal maps: what a server does about a regulariser that is not smooth.

    soft(x, t) = argmin_u t |u|_1 + 1/2 |x - u|^2 = sign(x) max(|x| - t, 0)

>>> soft(torch.tensor([3.0, -0.5, -2.0]), 1.0)
tensor([ 2.,  0., -1.])
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def soft(x: Tensor, t: Tensor | float) -> Tensor:
    """The proximal map of t |u|_1, element by element."""
    most = torch.as_tensor(t, dtype=x.dtype, device=x.device)
    return x - x.clamp(-most, most)  # plain zeros, where sign(x) 0 would have a sign


def check_l1(name: str, l1: float) -> None:
    """Refuse a weight that no regulariser has."""
    if not (l1 >= 0 and math.isfinite(l1)):
        raise ValueError(f"{name}(l1={l1}): write l1=0 for no regulariser, or its weight")
