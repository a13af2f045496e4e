"""Draws of random graphs: a function of their key alone, equal on every machine, with no generator to keep."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor


def uniform(count: int, *key: int) -> Tensor:
    """`count` numbers in [0, 1), float64: 53 bits each of SHAKE-128 of the key."""
    text = " ".join(map(str, key)).encode()
    words = np.frombuffer(hashlib.shake_128(text).digest(8 * count), dtype="<u8")
    return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
