"""Nets of a named model's shapes: every tensor has a gradient, and they are complete in the model's order."""

from __future__ import annotations

import math
from typing import Any, final

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from thinwire.lab.shapes import Shapes
from thinwire.sim.models import MODELS


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_gradients_are_complete_from_the_last_layer_to_the_first(name: str) -> None:
    weights = MODELS[name]()
    net, order = Shapes(name, 1), []
    assert [tuple(p.shape) for p in net.parameters()] == [weight.shape for weight in weights]
    for at, p in enumerate(net.parameters()):
        p.register_post_accumulate_grad_hook(lambda _, at=at: order.append(at))
    net(torch.ones(1)).square().mean().backward()
    assert order == list(reversed(range(len(weights))))
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())


@final
class _Products(TorchDispatchMode):
    """Rows, inner size and columns of every product of two matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[tuple[int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.sizes.append((*args[0].shape, args[1].shape[1]))
        return func(*args, **(kwargs or {}))

    @property
    def flops(self) -> int:
        return sum(2 * math.prod(one) for one in self.sizes)


def test_a_step_multiplies_as_much_as_the_model_does() -> None:
    net, batch = Shapes("gpt2", 2), 2
    with _Products() as done:
        loss = net(torch.ones(1)).square().mean()
        forward = done.flops
        loss.backward()
    assert forward == pytest.approx(batch * sum(weight.flops for weight in MODELS["gpt2"]()), rel=0.01)
    assert done.flops == 3 * forward
    assert all(min(size) > 1 for size in done.sizes)  # a product with a vector would be bound by memory
