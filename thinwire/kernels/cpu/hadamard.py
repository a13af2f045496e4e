"""Rotations, by the C++ module `_hadamard`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from thinwire.kernels.cpu import _hadamard
from thinwire.kernels.cpu.means import means

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.hadamard import Blocking


def peak(x: Tensor) -> float:
    """The largest finite magnitude."""
    return _hadamard.peak(x.data_ptr(), x.numel(), *means(x))


def hadamard(x: Tensor, block: int) -> None:
    """H of every block, in place."""
    _hadamard.hadamard(x.data_ptr(), x.numel() // block, block, *means(x))


def rotate(x: Tensor, cut: Blocking, words: Sequence[list[int]], factor: float | Tensor) -> Tensor:
    """H D ... H D (factor x)."""
    out = torch.empty(cut.padded)
    place = (x.data_ptr(), cut.n, cut.block, cut.last, list(words), float(factor))
    _hadamard.rotate(*place, out.data_ptr(), *means(x))
    return out


def unrotate_add(
    r: Tensor, cut: Blocking, words: Sequence[list[int]], out: Tensor, unit: float | Tensor, weight: float
) -> None:
    """`out += weight * unit * (rotated back)`; `r` is overwritten."""
    place = (r.data_ptr(), cut.n, cut.block, cut.last, list(words), float(unit), weight)
    _hadamard.unrotate_add(*place, out.data_ptr(), *means(r))
