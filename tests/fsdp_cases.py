"""Cases of `tw.fsdp` on four ranks, two replicas of two shards or one of four, which one world runs one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import nets
import torch
import torch.distributed as dist
from nets import equal_everywhere, loss, said
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from wholes import whole

import thinwire as tw
from thinwire.exchange import AllReduce
from thinwire.sync import Delta, Sgd

BOTH = "ef-signsgd"  # it has memories on both hops, and every rank owns a part
OUTER = "diloco:every=2"
LONG = bool(os.environ.get("THINWIRE_LONG"))  # with the cases that take long, as `make test-fsdp` has it
PLACE = {"device": "cpu"}


def net(seed: int = 0) -> nn.Sequential:
    return nets.net(seed).to(PLACE["device"])


def batch(number: int) -> tuple[Tensor, Tensor]:
    x, y = nets.batch(number)
    return x.to(PLACE["device"]), y.to(PLACE["device"])


class Forked(nn.Module):
    """A net of which a part is used only now and then, a number of which one shard is empty, and a vector.

    The gradient of the vector is `push`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = net(), net(3)
        self.single = nn.Parameter(torch.zeros(1, device=PLACE["device"]))
        self.extra = nn.Parameter(torch.zeros(4, device=PLACE["device"]))

    def forward(self, x: Tensor, *, fork: bool = True, push: float = 0.0) -> Tensor:
        out: Tensor = self.used(x) + self.idle(x) if fork else self.used(x)
        return out + self.single + (self.extra * x.new_tensor([push, 0.0, 0.0, 0.0])).sum()


@cache
def grid() -> DeviceMesh:
    """Two replicas of two shards."""
    return init_device_mesh(PLACE["device"], (2, 2), mesh_dim_names=("replicate", "shard"))


@cache
def line() -> DeviceMesh:
    """One replica of four shards."""
    return init_device_mesh(PLACE["device"], (4,), mesh_dim_names=("shard",))


def shard(model: nn.Module, mesh: DeviceMesh, **more: Any) -> nn.Module:
    """Two groups of parameters, one inside the other."""
    parts = model.used if isinstance(model, Forked) else model
    assert isinstance(parts, nn.Sequential)
    fully_shard(parts[2], mesh=mesh, **more)
    fully_shard(model, mesh=mesh, **more)
    return model


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def full(model: nn.Module) -> Tensor:
    return torch.cat([whole(p).detach().flatten() for p in model.parameters()])


def apart(a: nn.Module, b: nn.Module) -> float:
    return float((full(a) - full(b)).abs().max())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    loss(model, batch(number)).backward()
    optimizer.step()


def replica() -> int:
    return dist.get_rank() // 2


# What is exchanged.


def identity() -> dict[str, float]:
    """Beside native HSDP and plain FSDP2 of all ranks; the second replica starts from other numbers."""
    plain, native = shard(net(), line()), shard(net(), grid())
    ours, alone = shard(net(replica()), grid()["shard"]), shard(net(), line())
    models = [plain, native, ours, alone]
    optimizers = [sgd(model) for model in models]
    with (
        tw.fsdp(ours, optimizers[2], tw.methods.sgd(), replicas=grid()["replicate"]),
        tw.fsdp(alone, optimizers[3], tw.methods.sgd()),
    ):
        for number in range(2):
            for model, optimizer in zip(models, optimizers, strict=True):
                step(model, optimizer, number)
    return {"2x2 and HSDP": apart(ours, native), "2x2 and FSDP2": apart(ours, plain), "1x4": apart(alone, plain)}


def by_parameter(state: dict[str, Any]) -> dict[str, Tensor]:
    """What the memories of this rank hold, nan where they hold nothing, by memory and parameter."""
    (one,) = state.values()
    found = {}
    for key, value in one["tensors"].items():
        data = value.to_local().flatten().clone()
        if key in one["held"]:
            data[one["held"][key].to_local().flatten() == 0] = torch.nan
        found[key] = data
    return found


def residuals() -> bool:
    """Beside `attach` on modules whose parameters are the shards, with the gradients that FSDP2 computes."""
    mesh = grid()
    model, twin = shard(net(), mesh["shard"]), shard(net(), mesh["shard"])
    names = [name for name, _ in model.named_parameters()]
    shards = nn.Module()
    for number, p in enumerate(model.parameters()):
        shards.register_parameter(f"p{number}", nn.Parameter(p.detach().to_local().clone()))  # type: ignore[attr-defined]
    one, other = sgd(model), sgd(shards)
    with (
        tw.fsdp(model, one, tw.method(BOTH), replicas=mesh["replicate"], min_size=0) as wire,
        tw.attach(
            shards, other, tw.method(BOTH), process_group=mesh["replicate"].get_group(), min_size=0
        ) as attached,
    ):
        for number in range(3):
            with torch.no_grad():
                for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                    q.to_local().copy_(p.to_local())  # type: ignore[attr-defined]
            twin.zero_grad()
            loss(twin, batch(number)).backward()
            step(model, one, number)
            other.zero_grad()
            grads = [p.grad.to_local() for p in twin.parameters()]  # type: ignore[union-attr]
            sum((p * g).sum() for p, g in zip(shards.parameters(), grads, strict=True)).backward()
            other.step()
        mine, (theirs,) = by_parameter(wire.state_dict()), attached.state_dict().values()
    seen = 0
    for key, data in theirs["tensors"].items():
        memory, start, name = key.split("|")
        kept = mine[f"{memory}|{names[int(name[1:])]}"][int(start) : int(start) + data.numel()]
        if not torch.equal(kept, data):
            return False
        seen += data.numel()
    held = sum(int((~data.isnan()).sum()) for data in mine.values())
    return seen == held and any(bool(data.nan_to_num().any()) for data in mine.values())


def accumulated() -> dict[str, float]:
    """Two passes before a step: nothing travels between replicas in the first, or nothing at all."""
    plain, ours = shard(net(), line()), shard(net(), grid()["shard"])
    models, optimizers, out = [plain, ours], [sgd(plain), sgd(ours)], {}
    with tw.fsdp(ours, optimizers[1], tw.methods.sgd(), replicas=grid()["replicate"]) as wire:
        for number in range(2):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                if model is ours and number == 0:
                    with wire.no_sync():
                        loss(model, batch(10 + number)).backward()
                else:
                    model.set_requires_gradient_sync(False)  # type: ignore[operator]
                    loss(model, batch(10 + number)).backward()
                    model.set_requires_gradient_sync(True)  # type: ignore[operator]
                loss(model, batch(20 + number)).backward()
                optimizer.step()
            out[f"step {number}"] = apart(plain, ours)
        out["rounds"] = wire.stats()["rounds"]
    return out


def unused() -> dict[str, Any]:
    """A part that nobody uses in a step, and one that only one replica uses; residuals stay with their parameters."""
    plain, ours = shard(Forked(), line()), shard(Forked(), grid()["shard"])
    models, optimizers, out = [plain, ours], [sgd(plain), sgd(ours)], {}
    with tw.fsdp(ours, optimizers[1], tw.methods.sgd(), replicas=grid()["replicate"]):
        for number, fork in enumerate([True, False, True]):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                x, y = batch(number)
                (model(x, fork=fork) - y).square().mean().backward()
                optimizer.step()
        out["nobody"] = apart(plain, ours)
    again = shard(Forked(), grid()["shard"])
    optimizer = sgd(again, lr=0.01)
    with tw.fsdp(again, optimizer, tw.method(BOTH), replicas=grid()["replicate"], min_size=0) as wire:
        for number in range(3):
            optimizer.zero_grad()
            x, y = batch(number)
            (again(x, fork=number != 1 or replica() == 0) - y).square().mean().backward()
            optimizer.step()
        out["replicas equal"] = equal_everywhere(full(again))
        out["rounds"] = wire.stats()["rounds"]
    return out


def mixed() -> dict[str, Any]:
    """Gradients that are reduced in bfloat16 inside a replica, beside native HSDP, which does so everywhere."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    native, ours = shard(net(), grid(), mp_policy=policy), shard(net(), grid()["shard"], mp_policy=policy)
    exact = shard(net(), line())
    models = [native, ours, exact]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with tw.fsdp(ours, optimizers[1], tw.methods.sgd(), replicas=grid()["replicate"]):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, 0)
    return {"ours": apart(ours, exact), "native": apart(native, exact), "equal": equal_everywhere(full(ours))}


def compiled() -> float:
    plain, ours = shard(net(), line()), shard(net(), grid()["shard"])
    fast = torch.compile(ours, backend="eager")
    one, other = sgd(plain), sgd(ours)
    with tw.fsdp(fast, other, tw.methods.sgd(), replicas=grid()["replicate"]) as wire:  # type: ignore[arg-type]
        for number in range(2):
            step(plain, one, number)
            step(fast, other, number)  # type: ignore[arg-type]
        assert "_orig_mod" not in str(wire.plan())
    return apart(plain, ours)


def broken() -> dict[str, Any]:
    """A gradient that is not finite in one shard of one replica: no rank takes the step."""
    model = shard(Forked(), grid()["shard"])
    optimizer = sgd(model)
    with tw.fsdp(model, optimizer, tw.method(BOTH), replicas=grid()["replicate"], min_size=0) as wire:
        step(model, optimizer, 0)
        before = full(model)
        optimizer.zero_grad()
        x, y = batch(1)
        (model(x, push=torch.inf if dist.get_rank() == 2 else 0.0) - y).mean().backward()
        finite = all(bool(p.grad.to_local().isfinite().all()) for p in model.parameters())  # type: ignore[union-attr]
        optimizer.step()
        same, skipped = torch.equal(before, full(model)), wire.stats()["steps_skipped"]
        step(model, optimizer, 2)
        moves = not torch.equal(before, full(model))
        return {"finite here": finite, "same": same, "skipped": skipped, "goes on": moves}


def outer() -> dict[str, Any]:
    """Two local steps of each replica; then all go on from the mean of their models."""
    mesh = grid()
    model, twin = shard(net(), mesh["shard"]), shard(net(), mesh["shard"])
    one, other = sgd(model), sgd(twin)
    method = tw.Method(AllReduce(), tw.Sync(of=Delta(outer=Sgd(lr=1.0, momentum=0.0)), every=2))
    with tw.fsdp(model, one, method, replicas=mesh["replicate"]) as wire:
        step(model, one, 0)
        step(twin, other, 0)
        alone = apart(model, twin)
        step(model, one, 1)
        step(twin, other, 1)
        mean = full(twin)
        dist.all_reduce(mean)
        anchor = wire.anchor()
    shards = {name: p.to_local() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    return {
        "local step": alone,
        "mean": float((full(model) - mean / 4).abs().max()),
        "anchor": max(float((anchor[name] - value).abs().max()) for name, value in shards.items()),
    }


# Checkpoints.


def start(method: str, mesh: DeviceMesh | None = None) -> tuple[nn.Module, torch.optim.SGD, tw.Wire]:
    one = mesh or grid()["shard"]
    model = shard(Forked(), one)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    replicas = None if mesh is not None else grid()["replicate"]
    return model, optimizer, tw.fsdp(model, optimizer, tw.method(method), replicas=replicas, min_size=0)


def resumed(folder: str, method: str, *, long: bool) -> dict[str, Any]:
    """Saved with torch.distributed.checkpoint and in files after three steps; read again, and on other shards."""
    path = f"{folder}/{method.partition(':')[0]}"
    model, optimizer, wire = start(method)
    for number in range(3):
        step(model, optimizer, number)
    dcp.save({"model": model.state_dict(), "wire": wire}, checkpoint_id=path)
    torch.save(wire.state_dict(), f"{path}-{dist.get_rank()}.pt")
    kept = {key: whole(value) for key, value in next(iter(wire.state_dict().values()))["tensors"].items()}
    step(model, optimizer, 3)
    step(model, optimizer, 4)
    expected, out = full(model), {}
    wire.detach()
    for way in ("read", *["file"] * long):
        model, optimizer, wire = start(method)
        saved = {"model": model.state_dict()}
        dcp.load(saved, checkpoint_id=path)
        model.load_state_dict(saved["model"])
        wire.load_state_dict(wire.read(path) if way == "read" else torch.load(f"{path}-{dist.get_rank()}.pt"))
        step(model, optimizer, 3)
        step(model, optimizer, 4)
        out[way] = torch.equal(full(model), expected)
        wire.detach()
    if method == BOTH:
        _, _, wire = start(method)
        dcp.load({"wire": wire}, checkpoint_id=path)
        out["in place"] = wire.stats()["rounds"] == 0 and wire._runner.round == 3
        wire.detach()
        out |= resharded(path, method, kept)
    return out


def resharded(path: str, method: str, kept: dict[str, Tensor]) -> dict[str, bool]:
    """Two replicas of two shards become one of four: its residuals are the mean of what the two had."""
    model, optimizer, wire = start(method, line())
    wire.load_state_dict(wire.read(path))
    (state,) = wire.state_dict().values()
    same = True
    for key, value in state["tensors"].items():
        if key.startswith("up.send.residual"):
            mean = kept[key].clone()
            dist.all_reduce(mean)
            same &= torch.allclose(whole(value), mean / 4, atol=1e-7)
    step(model, optimizer, 3)
    other = said(lambda: wire.load_state_dict({"rank0": {}}))
    wire.detach()
    return {"mean": same, "refused": "is no state of a replica" in other}


def refusals() -> dict[str, str]:
    mesh = grid()
    model, flat, native = shard(net(), mesh["shard"]), net(), shard(net(), mesh)
    early = net()
    stale = sgd(early)
    shard(early, mesh["shard"])
    some, method, replicas = sgd(model), tw.methods.qsgd(), mesh["replicate"]
    calls: dict[str, Callable[[], object]] = {
        "attach": lambda: tw.attach(model, some, method),
        "whole": lambda: tw.fsdp(flat, sgd(flat), method, replicas=replicas),
        "ddp": lambda: tw.fsdp(DistributedDataParallel(flat), sgd(flat), method, replicas=replicas),
        "2-D": lambda: tw.fsdp(native, sgd(native), method, replicas=replicas),
        "nobody": lambda: tw.fsdp(model, some, method),
        "shards": lambda: tw.fsdp(model, some, method, replicas=mesh["shard"]),
        "both": lambda: tw.fsdp(model, some, method, replicas=mesh),
        "number": lambda: tw.fsdp(model, some, method, replicas=2),  # type: ignore[arg-type]
        "gossip": lambda: tw.fsdp(model, some, tw.methods.d_psgd(), replicas=replicas),
        "server": lambda: tw.fsdp(model, some, tw.methods.ssp(), replicas=replicas),
        "loss": lambda: tw.fsdp(model, some, tw.methods.adacomm(), replicas=replicas),
        "string": lambda: tw.fsdp(model, some, "qsgd", replicas=replicas),  # type: ignore[arg-type]
        "differ": lambda: tw.fsdp(model, some, tw.method(["sgd", "qsgd"][dist.get_rank() % 2]), replicas=replicas),
        "early": lambda: tw.fsdp(early, stale, method, replicas=replicas),
    }
    out = {name: said(call) for name, call in calls.items()}
    with tw.fsdp(model, some, method, replicas=replicas):
        out["twice"] = said(lambda: tw.fsdp(model, sgd(model), method, replicas=replicas))
    tw.fsdp(model, some, method, replicas=replicas).detach()
    return out


# The contract with torch.


def protocol() -> dict[str, Any]:
    """What FSDP2 does with hooks on sharded parameters: when, how often, and what lies in p.grad."""
    model = shard(net(), grid()["shard"])
    calls: list[tuple[int, bool]] = []
    for number, p in enumerate(model.parameters()):
        p.register_post_accumulate_grad_hook(
            lambda p, number=number: calls.append((number, isinstance(p.grad, DTensor)))
        )
    loss(model, batch(0)).backward()
    once = sorted(calls)
    loss(model, batch(0)).backward()
    return {"once": once == [(number, True) for number in range(6)], "again": len(calls) == 12}


CASES = [protocol, identity, residuals, accumulated, unused, mixed, broken, outer, refusals]


def world(folder: str, device: str = "cpu", *, long: bool = False) -> dict[str, Any]:
    """What every case returns, by its name."""
    PLACE["device"] = device
    dist.new_group([0, 1])  # ranks are in unequally many groups, and torch names others by that (`engine/naming.py`)
    found = {case.__name__: case() for case in [*CASES, *[compiled] * long]}
    for method in [BOTH, OUTER] * long:
        found[method] = resumed(folder, method, long=long)
    return found
