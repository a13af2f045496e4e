"""Nets of a named model's shapes: every tensor has a gradient, and they are complete in the model's order."""

from __future__ import annotations

import math
from typing import Any, final

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from thinwire.lab.shapes import Shapes
from thinwire.sim.models import MODELS


@pytest.mark.parametrize(("name", "seconds"), [("resnet50", None), ("gpt2", None), ("gpt2", 0.3)])
def test_gradients_are_complete_from_the_last_layer_to_the_first(name: str, seconds: float | None) -> None:
    weights = MODELS[name]()
    net, order = Shapes(name, 1, seconds), []
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


def test_asleep_each_layer_takes_its_share_of_the_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("thinwire.lab.shapes.time.sleep", slept.append)
    weights = MODELS["resnet50"]()
    loss = Shapes("resnet50", 1, seconds=6.0)(torch.ones(1)).square().mean()
    share = 6.0 / sum(weight.flops for weight in weights)
    assert slept == pytest.approx([share * weight.flops / 3 for weight in weights])
    assert sum(slept) == pytest.approx(2.0)
    slept.clear()
    loss.backward()
    assert slept == pytest.approx([2 * share * weight.flops / 3 for weight in reversed(weights)])
