"""GPT-2 small's shapes: as many parameters as it has, tied, trained by the benches on small shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thinwire.lab.bench_hosts import GPT2_PARAMS, Job, _work
from thinwire.lab.gpt2 import Gpt2, Shape, stepper, text
from thinwire.lab.launch import Say, launch

SMALL = Shape(words=96, layers=2, width=32, heads=4, context=16)


def test_gpt2_small_has_124_million_parameters() -> None:
    with torch.device("meta"):
        net = nn.ModuleDict({"whole": _without_noise(Shape())})
    assert sum(p.numel() for p in net.parameters()) == GPT2_PARAMS


def _without_noise(shape: Shape) -> nn.Module:
    before = nn.init.normal_
    nn.init.normal_ = lambda tensor, **_: tensor
    try:
        return Gpt2(shape)
    finally:
        nn.init.normal_ = before


def test_every_parameter_has_a_gradient_and_the_loss_falls() -> None:
    net = Gpt2(SMALL)
    words = text(SMALL, 4, 16, seed=1)
    assert words.shape == (4, 17)
    first = float(net(words).detach())
    assert first == pytest.approx(torch.log(torch.tensor(96.0)).item(), abs=0.2)
    step = stepper(net, words, torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(10):
        step()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
    assert float(net(words).detach()) < first


def test_no_word_sees_those_after_it() -> None:
    net, words = Gpt2(SMALL), text(SMALL, 1, 16, seed=2)
    other = words.clone()
    other[0, -1] = (other[0, -1] + 1) % 96  # only a target
    assert float(net(words).detach()) != float(net(other).detach())
    hidden = []
    net.norm.register_forward_hook(lambda module, given, out: hidden.append(out.detach()))
    other[0, 8] = (other[0, 8] + 1) % 96
    net(words), net(other)
    assert torch.equal(hidden[0][0, :8], hidden[1][0, :8])
    assert not torch.equal(hidden[0][0, 8:], hidden[1][0, 8:])


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="write --sequence 16 or less"):
        text(SMALL, 1, 17, seed=0)
    with pytest.raises(ValueError, match="write --sequence 16"):
        Job(["sgd"], 1000, "1gbit", 1, 1.0, 1, "cpu", SMALL, 17).check(2)


def steps(say: Say) -> tuple[bool, int]:
    whole, make = _work(Job(["sgd"], 1000, "1gbit", 1, 1.0, 2, "cpu", SMALL, 16))
    before = nn.utils.parameters_to_vector(whole.parameters()).detach().clone()
    make(whole, torch.optim.SGD(whole.parameters(), lr=0.1))()
    same = torch.equal(before, nn.utils.parameters_to_vector(whole.parameters()).detach())
    return same, torch.cuda.device_count()


def test_ranks_see_no_gpu_unless_they_use_one() -> None:
    assert launch(steps, 1, timeout=60.0) == [(False, 0)]
