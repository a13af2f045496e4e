"""The DCT's matrix products, by the C++ module `_dct`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinwire.kernels.cpu import _dct
from thinwire.kernels.cpu.means import means

if TYPE_CHECKING:
    from torch import Tensor


def sandwich(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """L X R of every matrix of `x`, which is overwritten if it is contiguous."""
    count, m, n = x.shape
    x = x.contiguous()
    _dct.sandwich(x.data_ptr(), count, m, n, left.data_ptr(), right.data_ptr(), *means(x))
    return x
