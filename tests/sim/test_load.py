"""Loads: what of a step is still to come after each tensor, of named models and of one's own."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn

import thinwire as tw
from thinwire.engine.plan import plan_of
from thinwire.sim import Load, Ready, Weight, foresee
from thinwire.sim.timed import WARM
from thinwire.sync import Layer, hidden

X, Y = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
PAUSE = 0.02  # seconds
SLEPT = 0.9 * PAUSE


class Slow(torch.autograd.Function):
    """Its backward takes a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        time.sleep(PAUSE)
        return grads[0]


class Net(nn.Module):
    """Backward takes a while between the gradients of its layers, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.spare = nn.Parameter(torch.zeros(3, 5))
        self.frozen = nn.Parameter(torch.zeros(7), requires_grad=False)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        middle = Slow.apply(self.norm(self.stem(x)))  # type: ignore[no-untyped-call]
        found: Tensor = self.head(nn.functional.dropout(middle, 0.1))
        return found


def loss(net: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(net(X), Y)


def test_layers_of_a_named_model() -> None:
    load = Load.of(
        [Weight("stem", (100, 100), 1.0), Weight("bias", (100,), 0.0), Weight("head", (300, 100), 3.0)], 0.3
    )
    stem, head = load.layers()
    assert (stem.name, stem.numel, head.name, head.numel) == ("stem", 10_000, "head", 30_000)
    assert stem.after == 0.0
    assert math.isclose(head.after, 0.05)  # backward takes 0.2 s, and a quarter of its operations are the stem's
    assert [layer.name for layer in load.layers(min_size=10_001)] == ["head"]
    assert [layer.name for layer in load.layers(min_size=0)] == ["stem", "bias", "head"]
    assert load.layers(min_size=100_000) == []


@pytest.mark.parametrize("size", [-1, 1.5, "10k", True])
def test_sizes_that_are_none_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="write what attach is given, such as min_size=10_000"):
        Load.of("resnet50").layers(size)


@pytest.mark.parametrize("model", ["resnet50", "gpt2"])
def test_layers_are_all_that_attach_compresses(model: str) -> None:
    load = Load.of(model, seconds=0.3)
    layers = load.layers()
    assert all(0 <= layer.after <= 0.2 + 1e-9 for layer in layers)  # a third of the step is forward
    plan = plan_of(tw.methods.lags(), load.items, None, ())
    compressed = {item.name for parcel in plan.parcels if parcel.compressed for item in parcel.items}
    assert {layer.name for layer in layers} == compressed
    assert [layer.after for layer in layers] == sorted(layer.after for layer in layers)


def test_a_model_of_ones_own() -> None:
    net = Net()
    load = Load.measured(net, loss, steps=3)
    assert [one.name for one in load.tensors] == [name for name, p in net.named_parameters() if p.requires_grad]
    assert [one.shape for one in load.tensors] == [tuple(p.shape) for p in net.parameters() if p.requires_grad]
    after = {layer.name: layer.after for layer in load.layers(min_size=0)}
    assert after["head.weight"] >= SLEPT > after["stem.weight"] >= after["spare"] == 0.0
    assert load.computed > SLEPT
    assert load.device == "cpu"
    assert Load.measured(net, loss, 1).layers() == []  # all are small
    assert foresee(tw.methods.lags(0.5), load, 4, steps=2, network=tw.Network("1gbit")).seconds > 2 * SLEPT
    assert hidden(load.layers(0), 4, "1gbit")["head.weight"] == 1.0


def test_nothing_is_left_behind() -> None:
    net = Net()
    loss(net).backward()
    before, grads = copy.deepcopy(net.state_dict()), [p.grad for p in net.parameters()]
    kept, values = [id(one) for one in grads], [None if one is None else one.clone() for one in grads]
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with torch.no_grad():
        Load.measured(net, loss, steps=1)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)
    assert net.steps == 1
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [id(p.grad) for p in net.parameters()] == kept
    for p, value in zip(net.parameters(), values, strict=True):
        assert p.grad is value or (p.grad is not None and value is not None and torch.equal(p.grad, value))
    assert not any(p._post_accumulate_grad_hooks for p in net.parameters())


def test_the_copy_takes_as_many_steps_as_asked() -> None:
    seen: list[nn.Module] = []

    def watched(net: nn.Module) -> Tensor:
        seen.append(net)
        return loss(net)

    model = Net()
    Load.measured(model, watched, steps=2)
    assert len(seen) == WARM + 2
    assert len({id(net) for net in seen}) == 1
    assert seen[0] is not model


@pytest.mark.parametrize(
    ("model", "given", "sentence"),
    [
        ("gpt2", loss, r"takes a torch.nn.Module; got str: write Load.measured\(model, lambda net"),
        (Net(), (X, Y), "loss=tuple is no function of the model"),
        (Net(), lambda net: net(X), r"one number that has a gradient; got a tensor of shape \(4, 2\)"),
        (Net(), lambda _: 1.0, "one number that has a gradient; got float"),
        (Net(), lambda net: loss(net).detach(), "got a tensor without a gradient"),
        (Net(), lambda _: torch.ones(1, requires_grad=True).sum(), "does not use the copy of the model"),
        (nn.Linear(8, 2).requires_grad_(False), loss, r"write model.requires_grad_\(True\)"),
        (nn.Linear(8, 2, device="meta"), loss, "on the device 'meta'"),
        (nn.Embedding(8, 2, sparse=True), lambda net: net(Y).sum(), "has a sparse gradient"),
    ],
)
def test_what_cannot_be_timed_is_refused(model: Any, given: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        Load.measured(model, given)


@pytest.mark.parametrize("steps", [0, 1.0, "3", True])
def test_no_steps_are_refused(steps: Any) -> None:
    with pytest.raises(ValueError, match="such as steps=10"):
        Load.measured(Net(), loss, steps)


def measured() -> list[Any]:
    """Alone in a group of its own, with the others, and wrapped by DDP."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    mine = groups[dist.get_rank()]
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
    alone = Load.measured(net, loss, 1, group=mine)
    return [alone, Load.measured(net, loss, 1), hidden(Load.measured(net.module, loss, 1).layers(0), 2, "100kbit")]


def test_ranks_agree() -> None:
    first, second = on_ranks(measured, 2)
    assert first[0] != second[0]
    assert first[1:] == second[1:]
    assert all(isinstance(one, Ready) for one in first[1].tensors)
    assert "stem.weight" in [one.name for one in first[1].tensors]  # as attach calls it, without "module."
    assert isinstance(first[1].layers(0)[0], Layer)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_model_on_a_gpu_is_timed_by_the_order_of_its_work() -> None:
    x = torch.ones(4096, 4096, device="cuda")
    net = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(3))).cuda()
    before = torch.cuda.get_rng_state()
    load = Load.measured(net, lambda one: nn.functional.dropout(one(x)).square().mean())
    stem, middle, head = (layer.after for layer in load.layers())
    assert head > middle > stem >= 0
    assert (load.device, torch.equal(torch.cuda.get_rng_state(), before)) == ("cuda", True)
