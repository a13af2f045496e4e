"""The codes of DRIVE and EDEN, by the C++ module `_hadamard`, which rotates in the same pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.kernels.cpu import _hadamard
from thinwire.kernels.cpu.means import means

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.kernels.hadamard import Blocking
    from thinwire.kernels.rotated_codes import Tables


def encode(
    x: Tensor, cut: Blocking, words: list[list[int]], factor: float | Tensor, tables: Tables, *, biased: bool
) -> tuple[Tensor, Tensor]:
    """Codes and scales."""
    codes = torch.empty(cut.padded, dtype=torch.uint8)
    scales = torch.empty(cut.count, dtype=torch.float64)
    place = (x.data_ptr(), cut.n, cut.block, cut.last, words, float(factor), tables.share, biased)
    _hadamard.encode(*place, *_numbers(tables), codes.data_ptr(), scales.data_ptr(), *means(x))
    return codes, scales


def decode_add(
    codes: Tensor, scales: Tensor, cut: Blocking, words: list[list[int]], tables: Tables, out: Tensor, weight: float
) -> None:
    """`out += weight * decoded`, in place."""
    place = (codes.data_ptr(), cut.n, cut.block, cut.last, words, tables.share)
    _hadamard.decode_add(*place, *_numbers(tables), scales.data_ptr(), weight, out.data_ptr(), *means(out))


def _numbers(tables: Tables) -> tuple[list[float], int, list[float], int]:
    high, low = tables.bits
    return list(tables.high), high, list(tables.low), low
