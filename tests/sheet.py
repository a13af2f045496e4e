"""What the tests of the specification share."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire import Key, Layout
from thinwire.core.compressor import Compressor


def gauss(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def decoded(c: Compressor, x: Tensor, step: int = 0, layout: Layout | None = None) -> Tensor:
    layout = layout or Layout.flat(x.numel())
    return c.decode(c.encode(x, layout, Key(seed=3, step=step)), layout, key=Key(seed=3, step=step))


def nmse(c: Compressor, d: int, repeats: int = 60) -> float:
    """E|C(x) - x|^2 / |x|^2 over Gaussian vectors and draws."""
    total = 0.0
    for i in range(repeats):
        x = gauss(d, seed=i)
        total += ((decoded(c, x, i) - x).square().sum() / x.square().sum()).item()
    return total / repeats
