"""A net with the shapes of a named model (`thinwire.sim.models`), and as much to compute for each of its tensors.

Layer l multiplies a fixed matrix of its own with its weights, with as many rows as make the model's operations, and
hands on one number, which scales the matrix of layer l + 1. So forward and backward take what they take in the model,
gradients become complete in the model's order, and nothing has to fit together.

A vector may carry the operations of a matrix whose gradient is complete elsewhere, as the last norm of a GPT-2
carries those of the head. They are done with a fixed matrix of that size: as products of the vector alone they would
be bound by memory and take several times as long as the head does.

With `seconds`, a step computes nothing and takes that long, asleep: each layer its share, a third of it forward. So
it is on hosts whose computing is done by a device, which leaves their cores to communication.
"""

from __future__ import annotations

import time
from typing import Any, final

import torch
from torch import Tensor, nn

from thinwire.sim.models import MODELS, Weight


@final
class Shapes(nn.Module):
    """The model `name`; a step computes `batch` samples, or takes `seconds` if these are given."""

    def __init__(self, name: str, batch: int, seconds: float | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weights = MODELS[name]()
        if seconds is None:
            self.layers = nn.ModuleList(Layer(weight, batch, generator) for weight in weights)
        else:
            each = seconds / sum(weight.flops for weight in weights)
            self.layers = nn.ModuleList(Asleep(weight, each * weight.flops, generator) for weight in weights)

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
        columns = weight.numel // weight.shape[0] if len(weight.shape) > 1 else weight.numel
        across = round(weight.flops / (2 * weight.numel)) if len(weight.shape) == 1 else 0
        rows = batch if across else round(batch * weight.flops / (2 * weight.numel))
        self._input = torch.randn(rows, columns, generator=generator) if rows else None
        self._carried = torch.randn(columns, across, generator=generator) if across else None

    def forward(self, x: Tensor) -> Tensor:
        """From one number to the next."""
        weight = self.weight
        if self._input is None:
            return x + 0.1 * weight.mean()
        if self._carried is not None:
            return x + 0.1 * _mean_of_product(self._input * x * weight, self._carried)
        return x + 0.1 * ((self._input * x) @ weight.view(len(weight), -1).t()).mean()


@final
class Asleep(nn.Module):
    """One tensor of the model and how long a device would compute with it."""

    def __init__(self, weight: Weight, seconds: float, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(weight.shape, generator=generator))
        self._seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        """From one number to the next."""
        out: Tensor = _Sleep.apply(x + 0.1 * self.weight.mean(), self._seconds)  # type: ignore[no-untyped-call]
        return out


@final
class _Sleep(torch.autograd.Function):
    """The same number, after a third of the time; in backward, the same gradient after the rest of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds / 3)
        return grads[0], None


@final
class _Product(torch.autograd.Function):
    """The mean of a product; backward computes the gradients of both factors, and returns that of the first."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return (left @ right).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        left, right = ctx.saved_tensors
        grad = (grads[0] / (len(left) * right.shape[1])).expand(len(left), right.shape[1]).contiguous()
        left.t() @ grad  # which a real head computes, too
        return grad @ right.t(), None


def _mean_of_product(left: Tensor, right: Tensor) -> Tensor:
    mean: Tensor = _Product.apply(left, right)  # type: ignore[no-untyped-call]
    return mean
