"""Nets of a named model's shapes: every tensor has a gradient, and they are complete in the model's order."""

from __future__ import annotations

import torch

from thinwire.lab.shapes import Shapes
from thinwire.sim.models import MODELS


def test_gradients_are_complete_from_the_last_layer_to_the_first() -> None:
    weights = MODELS["resnet50"]()
    net, order = Shapes("resnet50", 1), []
    assert [tuple(p.shape) for p in net.parameters()] == [weight.shape for weight in weights]
    for at, p in enumerate(net.parameters()):
        p.register_post_accumulate_grad_hook(lambda _, at=at: order.append(at))
    net(torch.ones(1)).square().mean().backward()
    assert order == list(reversed(range(len(weights))))
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
