"""ddp_hook does all that attach does, on thinwire's own plan, whatever buckets DDP makes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said, train
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw

METHODS = ["qsgd", "ecq-sgd", "ef-signsgd", "powersgd"]


def method(name: str) -> tw.Method:
    return tw.method(name)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def hooked(model: nn.Module, name: str, **more: Any) -> tuple[DistributedDataParallel, torch.optim.SGD, tw.Wire]:
    ddp = DistributedDataParallel(model, bucket_cap_mb=2048 / 2**20, **more)
    optimizer = sgd(ddp)
    wire, hook = tw.ddp_hook(method(name), ddp, optimizer, min_size=0)
    ddp.register_comm_hook(wire, hook)
    return ddp, optimizer, wire


class Forked(nn.Module):
    """A net with a part that no rank uses; DDP has several buckets in the first backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = net(), nn.Linear(300, 1200)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


def first_buckets() -> list[bool]:
    """find_unused_parameters with more than 1 MB, and bfloat16 beside float32: several buckets from the start."""
    found = []
    for kind in ("unused", "mixed"):
        model: nn.Module = Forked() if kind == "unused" else net()
        if kind == "mixed":
            model = nn.Sequential(nn.Linear(16, 16), net())
            model[0].to(torch.bfloat16)
            model[0].register_forward_pre_hook(lambda _, x: (x[0].bfloat16(),))
            model[0].register_forward_hook(lambda _, x, y: y.float())
        ddp = DistributedDataParallel(model, find_unused_parameters=kind == "unused")
        optimizer = sgd(ddp)
        wire, hook = tw.ddp_hook(tw.methods.ecq_sgd(), ddp, optimizer, min_size=0)
        ddp.register_comm_hook(wire, hook)
        train(ddp, optimizer, range(4))
        found.append(equal_everywhere(flat(ddp)) and wire.stats()["rounds"] == 4)
        wire.detach()
    return found


def test_several_buckets_in_the_first_backward_pass() -> None:
    assert on_ranks(first_buckets, 2) == [[True, True]] * 2


def beside_attach(folder: str) -> list[Any]:
    """By method: whether attach and a resumed run give the same bits, a refusal, events, and equal replicas."""
    out: list[Any] = []
    for name in METHODS:
        plain = net()
        optimizer = sgd(plain)
        with tw.attach(plain, optimizer, method(name), min_size=0):
            train(plain, optimizer, range(8))
        ddp, optimizer, wire = hooked(net(), name)
        train(ddp, optimizer, range(4))
        path = f"{folder}/{name}-{dist.get_rank()}"
        torch.save({"wire": wire.state_dict(), "optimizer": optimizer.state_dict(), "model": ddp.state_dict()}, path)
        train(ddp, optimizer, range(4, 8))
        wire.detach()
        again, optimizer, wire = hooked(net(), name)
        saved = torch.load(path)
        again.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        wire.load_state_dict(saved["wire"])
        train(again, optimizer, range(4, 8))
        resumed = torch.equal(flat(again), flat(ddp))
        other = torch.load(f"{folder}/{name}-{1 - dist.get_rank()}")
        refused = said(partial(wire.load_state_dict, other["wire"]))
        events = len(wire.events())
        wire.detach()
        train(again, optimizer, range(8, 10))  # the hook computes a plain mean now
        equal = equal_everywhere(flat(again))
        out.append([torch.equal(flat(plain), flat(ddp)), resumed, refused, events, equal])
    return out


@pytest.mark.timeout(240)
def test_a_hook_equals_attach_and_resumes_bit_for_bit(tmp_path: Any) -> None:
    for found in on_ranks(beside_attach, 2, str(tmp_path)):
        for (same, resumed, refused, events, equal), name in zip(found, METHODS, strict=True):
            assert same, name
            assert resumed, name
            assert ("load this rank's own file" in refused) == (name != "qsgd"), name  # which keeps no memory
            assert events < 100, name  # those of the last round alone
            assert equal, name


def refusals() -> list[str]:
    ddp = DistributedDataParallel(net())
    late = tw.Method(tw.exchange.AllReduce(), tw.Sync(staleness=None))
    double = DistributedDataParallel(net().double())
    wire, _ = tw.ddp_hook(tw.methods.qsgd(), ddp)
    told = [
        said(lambda: tw.ddp_hook(late, DistributedDataParallel(net()))),
        said(lambda: tw.ddp_hook(tw.methods.qsgd(), double)),
        said(lambda: tw.ddp_hook(tw.methods.local_sgd(), ddp)),
        said(lambda: tw.ddp_hook("qsgd", ddp)),  # type: ignore[arg-type]
        said(lambda: wire.no_sync().__enter__()),
        said(lambda: tw.ddp_hook(tw.methods.cr_psgd(), ddp)),
    ]
    wire.detach()
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.cr_psgd()) as wire:
        wire.batch(8 + dist.get_rank())
        told.append(said(lambda: train(model, optimizer, range(1))))
    return told


def test_what_a_hook_refuses() -> None:
    late, double, models, word, quiet, steps, grown = on_ranks(refusals, 2)[0]
    assert "all-reduce has rounds that ranks take together" in late
    assert "is torch.float64; write model.float()" in double
    assert "exchanges models" in models
    assert "write tw.ddp_hook(tw.method('qsgd'), model)" in word
    assert "write `with model.no_sync():`" in quiet
    assert "counts the optimizer's steps; write tw.ddp_hook(method, model, optimizer)" in steps
    assert "rank 0 called wire.batch(8)" in grown


def compiled_names() -> list[str]:
    ddp = DistributedDataParallel(torch.compile(net(), backend="eager"))
    wire, _ = tw.ddp_hook(tw.methods.ecq_sgd(), ddp, min_size=0)
    names = list(wire.state_dict()[f"rank{dist.get_rank()}"]["parameters"])
    wire.detach()
    return names


def test_names_do_not_tell_of_compilation() -> None:
    assert on_ranks(compiled_names, 1)[0] == [
        "4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"
    ]  # fmt: skip


def switched() -> list[bool]:
    ddp, optimizer, wire = hooked(net(), "ecq-sgd")
    train(ddp, optimizer, range(3))
    wire.switch(tw.methods.qsgd(bits=8))
    train(ddp, optimizer, range(3, 6))
    with ddp.no_sync():
        loss(ddp, batch(6)).backward()
    rounds = wire.stats()["rounds"]
    wire.detach()
    return [equal_everywhere(flat(ddp)), rounds == 6, wire.method.id == "qsgd:bits=8"]


def test_a_hook_can_switch_methods() -> None:
    assert all(all(found) for found in on_ranks(switched, 2))
