"""The small nets with uneven tensors: the tensors that those they stand for have."""

from __future__ import annotations

import pytest
import torch

from thinwire.lab.gpt2 import Gpt2
from thinwire.lab.uneven import GPT, resnet50
from thinwire.sim.models import MODELS


def test_the_narrow_resnet_has_the_tensors_of_resnet50() -> None:
    net, wide = resnet50(4), {one.name: one.shape for one in MODELS["resnet50"]()}
    found = {name: tuple(p.shape) for name, p in net.named_parameters()}
    assert list(found) == list(wide)
    for name, shape in found.items():
        if name not in ("conv1.weight", "fc.weight", "fc.bias"):  # other images, other classes
            assert (shape[0] * 16, *(n * 16 for n in shape[1:2]), *shape[2:]) == wide[name]
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_the_embedding_has_the_share_of_gpt2s() -> None:
    sizes = {name: p.numel() for name, p in Gpt2(GPT).named_parameters()}
    assert sizes["words.weight"] / sum(sizes.values()) == pytest.approx(50257 * 768 / 124_439_808, abs=0.01)
