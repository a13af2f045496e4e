"""A residual net for images in ten classes, n of them at once: one per worker, with its own parameters and images.

Blocks are x + conv(relu(norm(conv(relu(norm(x)))))), as in He, Zhang, Ren, Sun, "Identity mappings in deep residual
networks", ECCV 2016, arXiv 1603.05027. The channels of the n nets lie side by side and convolutions have n groups,
which takes half the time of n nets under vmap. Norms are over groups of channels of one image (Wu, He, ECCV 2018,
arXiv 1803.08494), so that there are no running means to exchange; they have no gains, so that all parameters but the
last ten are weights of layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, group_norm

from thinwire.core.types import Layout

CLASSES = 10
GROUPS = 4  # of channels that a norm takes together


@final
@dataclass(frozen=True)
class Residual:
    """A convolution, a block for each step from width to width, the mean over the places, ten numbers.

    A block halves the image; its shortcut is a 1x1 convolution. `halve` halves the image before everything else.

    >>> Residual().layout.numel
    18322
    """

    widths: tuple[int, ...] = (8, 16, 32)
    halve: bool = False

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of the parameters of one net."""
        shapes: dict[str, tuple[int, ...]] = {"first": (self.widths[0], 1, 3, 3)}
        for number, (a, b) in enumerate(pairwise(self.widths)):
            shapes |= {f"{number}.a": (b, a, 3, 3), f"{number}.b": (b, b, 3, 3), f"{number}.short": (b, a, 1, 1)}
        shapes |= {"last": (CLASSES, self.widths[-1]), "bias": (CLASSES,)}
        return Layout(tuple(shapes), tuple(shapes.values()))

    def start(self, seed: int) -> Tensor:
        """Parameters (d,) to start from: normal with variance 2 / inputs, the bias zero."""
        g = torch.Generator().manual_seed(seed)
        parts = []
        for shape, size in zip(self.layout.shapes, self.layout.sizes, strict=True):
            spread = math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else 0.0
            parts.append(spread * torch.randn(size, generator=g))
        return torch.cat(parts)

    def __call__(self, models: Tensor, images: Tensor) -> Tensor:
        """Apply models (n, d) to images (n, batch, 1, height, width); returns (n, batch, 10)."""
        n = len(images)
        layout = self.layout
        parts = models.split(layout.sizes, 1)
        w = {name: p.unflatten(1, shape) for name, p, shape in zip(layout.names, parts, layout.shapes, strict=True)}
        x = images.transpose(0, 1).flatten(1, 2)  # (batch, n, height, width)
        x = _conv(avg_pool2d(x, 2) if self.halve else x, w["first"], 1)
        for number in range(len(self.widths) - 1):
            inner = _conv(_norm(x, n), w[f"{number}.a"], 2)
            x = _conv(x, w[f"{number}.short"], 2) + _conv(_norm(inner, n), w[f"{number}.b"], 1)
        seen = _norm(x, n).mean((2, 3)).unflatten(1, (n, -1))  # (batch, n, channels)
        return torch.baddbmm(w["bias"].unsqueeze(1), seen.transpose(0, 1), w["last"].transpose(1, 2))


def _conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Images x (batch, n channels, height, width) with weight (n, out, channels, k, k), each net separately."""
    n, k = weight.shape[0], weight.shape[-1]
    return conv2d(x, weight.flatten(0, 1), stride=stride, padding=k // 2, groups=n)


def _norm(x: Tensor, n: int) -> Tensor:
    """Mean 0 and deviation 1 in each group of channels of each image, then the positive part."""
    return torch.relu(group_norm(x, n * GROUPS))
