"""What a compressor loses of a Gaussian vector: bounds for the worst vector are often far from what is observed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from thinwire.core.types import Key, Layout

if TYPE_CHECKING:
    from thinwire.core.compressor import Compressor

VECTOR = (4096,)
MATRIX = (64, 1024)


@lru_cache(maxsize=256)
def lost(compressor: Compressor, shape: tuple[int, ...] = VECTOR) -> float:
    """|C(x) - x|^2 / |x|^2 for one Gaussian tensor of that shape: omega if unbiased, 1 - delta if a contraction."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    layout, key = Layout.of([("", x)]), Key(seed=1)
    error = compressor.decode(compressor.encode(x, layout, key), layout, key=key) - x.flatten()
    return float(error.square().sum() / x.square().sum())
