"""The squared length of a vector, summed in the order of the kernels: the same on every machine and thread count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinwire.kernels.dispatch import select
from thinwire.kernels.spec import Blocks, Kind, Norm, Quant

if TYPE_CHECKING:
    from torch import Tensor

_L2 = Quant(Kind.SIGNED, Norm.L2, levels=1, width=2)


def square_length(x: Tensor) -> float:
    """|x|^2, from a norm in float32; NaN where an element is not finite.

    >>> import torch
    >>> square_length(torch.tensor([3.0, 4.0]))
    25.0
    """
    n = x.numel()
    return float(select(x).scales(x.detach().view(-1), _L2, Blocks(n, size=n))) ** 2 if n else 0.0
