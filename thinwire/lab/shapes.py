"""A net with the shapes of a named model (`thinwire.sim.models`), and as much to compute for each of its tensors.

Layer l multiplies a fixed matrix of its own with its weights, with as many rows as make the model's operations, and
hands on one number, which scales the matrix of layer l + 1. So forward and backward take what they take in the model,
gradients become complete in the model's order, and nothing has to fit together.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from thinwire.sim.models import MODELS, Weight


@final
class Shapes(nn.Module):
    """The model `name`; a step computes `batch` samples."""

    def __init__(self, name: str, batch: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList(Layer(weight, batch, generator) for weight in MODELS[name]())

    def forward(self, x: Tensor) -> Tensor:
        """From one number to one number, which the weights of all layers have a part in."""
        for layer in self.layers:
            x = layer(x)
        return x


@final
class Layer(nn.Module):
    """One tensor of the model and what is computed with it: a module, since modules wait for parameters."""

    def __init__(self, weight: Weight, batch: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(weight.shape, generator=generator))
        rows = _rows(weight, batch)
        columns = weight.numel // weight.shape[0] if len(weight.shape) > 1 else weight.numel
        self._input = torch.randn(rows, columns, generator=generator) if rows else None

    def forward(self, x: Tensor) -> Tensor:
        """From one number to the next."""
        weight = self.weight
        if self._input is None:
            return x + 0.1 * weight.mean()
        matrix = weight.view(len(weight), -1) if weight.dim() > 1 else weight.view(1, -1)
        return x + 0.1 * ((self._input * x) @ matrix.t()).mean()


def _rows(weight: Weight, batch: int) -> int:
    """Each row takes a multiplication and an addition per element."""
    return round(batch * weight.flops / (2 * weight.numel))
