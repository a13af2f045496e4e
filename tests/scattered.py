"""What four ranks do for tests/distributed/test_reduce_scatter.py: cases in one world, and what each found."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from nets import batch, loss, said, same
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from wholes import whole

import thinwire as tw
from thinwire.comm.processes import Processes
from thinwire.compressors import Identity, IntBlock
from thinwire.engine.inside import Inside
from thinwire.exchange import ReduceScatter

RANKS = 4
WHOLE = ReduceScatter(Identity())
COARSE = ReduceScatter(IntBlock(bits=3, block=32))
FEEDBACK = ReduceScatter(IntBlock(bits=3, block=32), residual="int8")
EXACT = ReduceScatter(IntBlock(bits=3, block=32), residual="float32")


class Odd(nn.Module):
    """Shapes that four ranks do not divide, one with fewer rows than ranks, and a branch that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 37)
        self.second = nn.Linear(37, 3, bias=False)
        self.branch = nn.Linear(37, 3)
        self.last = nn.Linear(3, 4)
        self.branches = True

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        out = self.second(hidden) + self.branch(hidden) if self.branches else self.second(hidden)
        found: Tensor = self.last(out)
        return found


def sharded(mesh: DeviceMesh | None = None, **more: Any) -> Any:
    """A net of two units, one inside the other."""
    model = Odd()
    fully_shard(model.first, mesh=mesh, **more)
    return fully_shard(model, mesh=mesh, **more)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def shards(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().to_local().flatten() for p in model.parameters()])  # type: ignore[attr-defined]


def backward(model: nn.Module, step: int) -> None:
    loss(model, batch(step)).backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> Tensor:
    for step in steps:
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return shards(model)


def gathered(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients; zeros where there is none."""
    return {
        name: torch.zeros(p.shape) if p.grad is None else whole(p.grad).float()
        for name, p in model.named_parameters()
    }


def summed(step: int, *, branches: bool = True) -> dict[str, Tensor]:
    """The sum over ranks of the gradients, computed here."""
    model = Odd()
    model.branches = branches
    for rank in range(RANKS):
        loss(model, batch(step, rank)).backward()
    return {name: torch.zeros(p.shape) if p.grad is None else p.grad for name, p in model.named_parameters()}


def furthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in b)


def as_plain_fsdp(folder: str) -> dict[str, Any]:
    """How far the identity is from FSDP's own, on one mesh and with replicas; and what is left after `detach`."""
    out: dict[str, Any] = {}
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for kind, mesh in (("fsdp", None), ("hsdp", grid)):
        plain, ours = sharded(mesh), sharded(mesh)
        optimizer = sgd(ours)
        inside = Inside(ours, WHOLE, optimizer)
        expected = train(plain, sgd(plain), range(2))
        out[kind] = float((train(ours, optimizer, range(2)) - expected).abs().max())
        out[f"{kind} rounds"] = inside.stats()["inside_rounds"]
        inside.detach()
        out[f"{kind} left"] = [type(call.unit.comm).__name__ for call in inside.calls]
        out[f"{kind} private"] = any("post_backward" in vars(call.unit._group) for call in inside.calls)
    return out


def operations(folder: str) -> dict[str, float]:
    """AVG, SUM and PREMUL_SUM, and reduction in 16 bits: how far from the sum that was asked for."""
    out, true = {}, summed(0)
    for op, weight in (("avg", 1 / RANKS), ("sum", 1 / RANKS), ("premul", 1 / 3)):
        model = sharded()
        with Inside(model, WHOLE):
            for module in (model.first, model):
                if op == "sum":
                    module.set_force_sum_reduction_for_comms(True)
                if op == "premul":
                    module.set_gradient_divide_factor(3.0)
            backward(model, 0)
        out[op] = furthest(gathered(model), {name: g * weight for name, g in true.items()})
    for dtype in (torch.bfloat16, torch.float16):
        model = sharded(mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
        with Inside(model, ReduceScatter(IntBlock(bits=8, block=32))):
            backward(model, 0)
        out[str(dtype)] = furthest(gathered(model), {name: g / RANKS for name, g in true.items()})
    return out


def held_back(inside: Inside) -> dict[str, Tensor]:
    """The sum over ranks of the residuals, put together by parameter."""
    out = {}
    for call in inside.calls:
        assert call.kept is not None
        for name in call.kept.layout.names:
            cut = call.unit.cuts()[name]
            rows = [call.kept.read(row, (name,)).clone() for row in range(RANKS - 1)]
            rows.insert(dist.get_rank(), torch.zeros_like(rows[0]))
            whole = cut.joined(rows).contiguous()
            dist.all_reduce(whole)
            out[name] = whole
    return out


def conserved(folder: str) -> dict[str, Any]:
    """What was applied and what is held back is what was computed, also where a branch is left out now and then."""
    out: dict[str, Any] = {}
    for kind, how, keep_all in (("exact", EXACT, False), ("int8", FEEDBACK, False), ("zeros", EXACT, True)):
        model = sharded()
        if keep_all:
            model.set_reduce_scatter_unused_params(True)
        with Inside(model, how) as inside:
            applied = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
            true = copy.deepcopy(applied)
            idle: list[bool] = []
            for step in range(3):
                model.branches = step != 1
                before = inside.state_dict()[f"rank{dist.get_rank()}"]["tensors"]
                model.zero_grad()
                backward(model, step)
                after = inside.state_dict()[f"rank{dist.get_rank()}"]["tensors"]
                idle.append(same(*({k: t for k, t in s.items() if "branch" in k} for s in (before, after))))
                for name, g in gathered(model).items():
                    applied[name] += g
                for name, g in summed(step, branches=model.branches).items():
                    true[name] += g / RANKS
            left = held_back(inside)
            out[kind] = furthest({name: applied[name] + left[name] / RANKS for name in true}, true)
            out[f"{kind} idle"] = idle
            out[f"{kind} lost"] = furthest(applied, true)
    return out


def accumulated(folder: str) -> float:
    """Two micro-batches, of which the first is not reduced, and a parameter that is frozen at first."""
    model = sharded()
    model.last.weight.requires_grad_(False)
    with Inside(model, EXACT) as inside:
        model.set_requires_gradient_sync(False)
        backward(model, 0)
        model.set_requires_gradient_sync(True)
        backward(model, 1)
        applied, left = gathered(model), held_back(inside)
        first, second = summed(0), summed(1)
        true = {name: (first[name] + second[name]) / RANKS for name in left}
        gap = furthest({name: applied[name] + left[name] / RANKS for name in true}, true)
        model.last.weight.requires_grad_(True)
        model.zero_grad()
        backward(model, 2)
        assert held_back(inside)["last.weight"].abs().sum() > 0
    return gap


def resumed(folder: str) -> dict[str, Any]:
    """Four steps, and two after a checkpoint; then wrong states, and another number of ranks."""
    out: dict[str, Any] = {}
    rank = dist.get_rank()
    model = sharded()
    optimizer = sgd(model)
    inside = Inside(model, FEEDBACK, optimizer, seed=5)
    train(model, optimizer, range(2))
    weights = {name: p.detach().clone() for name, p in model.state_dict().items()}
    torch.save({"inside": inside.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/{rank}")
    dist.barrier()
    expected = train(model, optimizer, range(2, 4))
    inside.detach()
    again = sharded()
    again.load_state_dict(weights)
    optimizer = sgd(again)
    inside = Inside(again, FEEDBACK, optimizer)
    saved = torch.load(f"{folder}/{rank}")
    optimizer.load_state_dict(saved["optimizer"])
    inside.load_state_dict(saved["inside"])
    out["same residuals"] = same(inside.state_dict(), saved["inside"])
    total = held_back(inside)
    out["same bits"] = torch.equal(train(again, optimizer, range(2, 4)), expected)
    states = [torch.load(f"{folder}/{r}")["inside"] for r in range(RANKS)]
    out["wrong rank"] = said(lambda: inside.load_state_dict(states[(rank + 1) % RANKS]))
    out["foreign"] = said(lambda: inside.load_state_dict({"step": 3}))
    torn = copy.deepcopy(states[rank])
    torn[f"rank{rank}"]["tensors"]["scales|first.weight"] = torch.zeros(2)
    out["damaged"] = said(lambda: inside.load_state_dict(torn))
    inside.detach()
    half = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))["shard"]
    fewer = sharded(half)
    with Inside(fewer, FEEDBACK) as inside:
        out["alone"] = said(lambda: inside.load_state_dict(states[rank]))
        out["error"] = said(lambda: inside.load_state_dict(states, on_resize="error"))
        inside.load_state_dict(states)
        out["resized"] = resized(inside, total)
        inside.load_state_dict(states, on_resize="reset")
        out["reset"] = sum(
            float(call.kept.read(0, call.kept.layout.names).abs().sum()) for call in inside.calls if call.kept
        )
    with Inside(fewer, COARSE) as inside:
        out["other"] = said(lambda: inside.load_state_dict(states[rank]))
    return out


def resized(inside: Inside, total: dict[str, Tensor]) -> float:
    """How far the mean over two ranks is from that over four; both pairs of ranks took the same shares."""
    gap = 0.0
    for call in inside.calls:
        assert call.kept is not None
        me = dist.get_rank(call.unit.process_group)
        for name, cut in call.unit.cuts().items():
            row = call.kept.read(0, (name,))
            whole = cut.joined([torch.zeros_like(row), row] if me == 0 else [row, torch.zeros_like(row)]).contiguous()
            dist.all_reduce(whole)
            gap = max(gap, float((whole / RANKS - total[name] / RANKS).abs().max()))
    return gap


def traffic(folder: str) -> dict[str, Any]:
    """What is counted, what the plan says, and what the process group was really given."""
    model, really = sharded(), [0]
    send = dist.ProcessGroup.send

    def counted(group: Any, tensors: Sequence[Tensor], *rest: Any) -> Any:
        really[0] += sum(t.numel() * t.element_size() for t in tensors)
        return send(group, tensors, *rest)  # type: ignore[arg-type]

    with Inside(model, FEEDBACK) as inside:
        dist.ProcessGroup.send = counted  # type: ignore[assignment,method-assign]
        try:
            for step in range(2):
                backward(model, step)
        finally:
            dist.ProcessGroup.send = send  # type: ignore[method-assign]
        plan, stats = inside.plan(), inside.stats()
        storages = {}
        for call in inside.calls:
            assert call.kept is not None
            for name in call.kept.layout.names:
                for t in call.kept.parts(name).values():
                    storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        kept = sum(storages.values())
        planned = 2 * sum(unit.sends(plan.how) for unit in plan.units)
    return {
        "really": really[0],
        "planned": planned,
        "kept": kept,
        "plan": str(plan),
        "memory": plan.memory(),
        **stats,
    }


def damaged(folder: str) -> list[str]:
    """Rank 1 receives a payload with one bit changed; a NaN of rank 2; and calls that torch does not make."""
    model: Any = fully_shard(nn.Linear(8, 8, bias=False))
    world = dist.group.WORLD
    inside = Inside(model, EXACT)
    (call,) = inside.calls
    told = []
    call.unit._with_gradient = list(call.unit._group.fsdp_params)
    x, out = torch.ones(64), torch.zeros(16)
    answer = Processes.answer

    def flipped(self: Processes, request: Any) -> Any:
        arrived = answer(self, request)
        if dist.get_rank() == 1:
            arrived[2][40] ^= 4
        return arrived

    Processes.answer = flipped  # type: ignore[method-assign]
    told.append(said(lambda: call(out, x, world, dist.ReduceOp.AVG)))  # type: ignore[arg-type]
    Processes.answer = answer  # type: ignore[method-assign]
    call.round = 9
    bad = torch.full((64,), torch.nan) if dist.get_rank() == 2 else x
    call(out, bad, world, dist.ReduceOp.AVG)  # type: ignore[arg-type]
    assert call.kept is not None
    told.append(f"{bool(out.isnan().all())} {bool(call.kept.read(0, ('weight',)).isfinite().all())}")
    told.append(said(lambda: call(out, x, world, dist.ReduceOp.AVG, async_op=True)))  # type: ignore[arg-type]
    told.append(said(lambda: call(out[:7], x, world, dist.ReduceOp.AVG)))  # type: ignore[arg-type]
    told.append(said(lambda: call(out, x, world, dist.ReduceOp.MAX)))  # type: ignore[arg-type]
    told.append(said(lambda: call(out.double(), x.double(), world, dist.ReduceOp.AVG)))  # type: ignore[arg-type]
    call.unit._with_gradient = []
    told.append(said(lambda: call(out, x, world, dist.ReduceOp.AVG)))  # type: ignore[arg-type]
    told.append(said(lambda: Inside(model, EXACT)))
    inside.detach()
    mine = COARSE if dist.get_rank() else FEEDBACK
    told.append(said(lambda: Inside(model, mine)))
    told.append(said(lambda: Inside(model, IntBlock(bits=4))))  # type: ignore[arg-type]
    told.append(said(lambda: Inside(nn.Linear(2, 2), COARSE)))
    return told


def through_checkpoint(path: str, mesh: DeviceMesh) -> dict[str, Any]:
    """A wire with residuals inside, saved with torch.distributed.checkpoint and read again."""

    def wired() -> tuple[Any, torch.optim.SGD, tw.Wire]:
        model = sharded(mesh["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = tw.methods.qsgd(bits=4)
        return model, optimizer, tw.fsdp(model, optimizer, method, replicas=mesh["replicate"], inside=FEEDBACK)

    model, optimizer, wire = wired()
    train(model, optimizer, range(2))
    dcp.save({"wire": wire, "model": model}, checkpoint_id=path)
    own = wire.state_dict()["inside"]
    expected = train(model, optimizer, range(2, 4))
    wire.detach()
    model, optimizer, wire = wired()
    dcp.load({"model": model}, checkpoint_id=path)
    wire.load_state_dict(wire.read(path))
    restored = same(wire.state_dict()["inside"], own)
    resumed = torch.equal(train(model, optimizer, range(2, 4)), expected)
    wire.detach()
    return {"restored": restored, "resumed": resumed}


def through_fsdp(folder: str) -> dict[str, Any]:
    """Two replicas of two shards: `tw.fsdp` with and without `inside`, which loses nothing here."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found, out = [], dict[str, Any]()
    for how in (None, WHOLE):
        model = sharded(mesh["shard"])
        optimizer = sgd(model)
        with tw.fsdp(model, optimizer, tw.methods.sgd(), replicas=mesh["replicate"], inside=how) as wire:
            found.append(train(model, optimizer, range(2)))
            out[str(how is None)] = [str(wire.plan()), wire.stats().get("inside_bytes_sent", 0.0)]
            if how is not None:
                out.update(through_checkpoint(f"{folder}/dcp", mesh))
    wrong: Any = "int"
    out["word"] = said(lambda: tw.fsdp(model, optimizer, tw.methods.sgd(), replicas=mesh["replicate"], inside=wrong))
    some = FEEDBACK if dist.get_rank() % 2 else None
    out["differ"] = said(lambda: tw.fsdp(model, optimizer, tw.methods.sgd(), replicas=mesh["replicate"], inside=some))
    return {**out, "gap": float((found[0] - found[1]).abs().max())}


LONG = bool(os.environ.get("THINWIRE_LONG"))  # with the case that takes long, as `make test-fsdp` has it
CASES = (as_plain_fsdp, operations, conserved, accumulated, resumed, traffic, damaged, *[through_fsdp] * LONG)


def every_case(folder: str) -> dict[str, Any]:
    return {case.__name__: case(folder) for case in CASES}
