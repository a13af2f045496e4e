"""attach in real processes: against DDP, replicas, what models and loops may look like."""

from __future__ import annotations

import itertools
import time
import zlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import SYNCHRONOUS, batch, equal_everywhere, flat, loss, net, train
from ranks import PATIENCE, on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire import Channel, Method, Overlap, Sync
from thinwire.compressors import Identity, Qsgd
from thinwire.core.method import METHODS
from thinwire.exchange import AllGather, AllReduce, ScatterGather

SMALL = Overlap(bucket_mb=2048 / 2**20, chunk_mb=1024 / 2**20)  # several buckets of several chunks in a tiny net
IDENTITY = [
    Method(AllReduce(), overlap=SMALL),
    Method(AllGather(Channel(Identity())), overlap=SMALL),
    Method(ScatterGather(Channel(Identity())), overlap=SMALL),
]


def sgd(model: nn.Module, lr: float = 0.2) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def identity_beside_ddp() -> list[float]:
    """The largest difference to DDP after 6 steps, for attach and for ddp_hook, with every exchange."""
    model = DistributedDataParallel(net())
    train(model, sgd(model), range(6))
    expected = flat(model)
    apart = []
    for method in IDENTITY:
        ours = net(seed=dist.get_rank())  # attach makes the parameters equal to rank 0's
        with tw.attach(ours, optimizer := sgd(ours), method, min_size=100):
            train(ours, optimizer, range(6))
        apart.append(float((flat(ours) - expected).abs().max()))
        hooked = DistributedDataParallel(net(), bucket_cap_mb=2048 / 2**20)
        hooked.register_comm_hook(*tw.ddp_hook(method, hooked, min_size=100))
        train(hooked, sgd(hooked), range(6))
        apart.append(float((flat(hooked) - expected).abs().max()))
    return apart


def test_the_identity_compressor_is_ddp() -> None:
    for apart in on_ranks(identity_beside_ddp, 2):
        assert max(apart) < 1e-6


def many_steps(names: list[str], steps: int) -> dict[str, tuple[list[int], float]]:
    """For every method: the bits of the replica after each step, as a checksum, and the last loss."""
    out = {}
    for name in names:
        model = net()
        method = METHODS.parse(name)
        adam = name == "one-bit-adam"
        optimizer: torch.optim.Optimizer
        optimizer = tw.optim.OneBitAdam(model.parameters(), lr=1e-2, freeze=2) if adam else sgd(model, 0.002)
        if name == "diana":  # with its proximal step
            optimizer = tw.optim.ProximalSGD(model.parameters(), lr=0.01, momentum=0.9, l1=0.1)
        if adam:
            method = METHODS.parse("one-bit-adam:warmup=2")
        bits = []
        with tw.attach(model, optimizer, method, min_size=0):
            for step in range(steps):
                train(model, optimizer, range(step, step + 1))
                bits.append(zlib.crc32(flat(model).numpy().tobytes()))
        assert name != "diana" or 0 < (flat(model) == 0).float().mean() < 1
        out[name] = bits, loss(model, batch(99, 0)).item()
    return out


def test_replicas_are_bitwise_equal_after_every_step_of_every_method(long: bool) -> None:
    """On three ranks, whose shards differ in length; on four with --long."""
    steps = 50 if long else 4
    results = on_ranks(many_steps, 4 if long else 3, SYNCHRONOUS, steps)
    for name in SYNCHRONOUS:
        bits = {tuple(result[name][0]) for result in results}
        assert len(bits) == 1, name
        assert len(set(bits.pop())) == steps, name  # and every step moved them
        assert results[0][name][1] < 10, name


def accumulated(split: int) -> Tensor:
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.sgd()) as wire:
        for step in range(5):
            x, y = batch(step, size=8)
            optimizer.zero_grad()
            parts = list(zip(x.chunk(split), y.chunk(split), strict=True))
            with wire.no_sync():
                for part in parts[:-1]:
                    (loss(model, part) / split).backward()
            (loss(model, parts[-1]) / split).backward()
            optimizer.step()
        found = wire.stats()
        assert found["rounds"] == found["steps"] == found["last_steps"] == 5
        assert found["ddp_bytes"] == 5 * 4 * flat(model).numel()  # two ranks send each element once
        assert found["ratio"] == found["last_ratio"] == pytest.approx(found["ddp_bytes"] / found["bytes_sent"])
        assert 0 < found["step_wait_s"] < found["step_s"] < 5
        assert 0 <= found["hidden"] <= 1
    return flat(model)


def accumulated_or_not() -> tuple[Tensor, Tensor]:
    return accumulated(1), accumulated(4)


def test_accumulation_equals_the_large_batch() -> None:
    whole, split = on_ranks(accumulated_or_not, 2)[0]
    assert torch.allclose(whole, split, atol=1e-6)


def zeroed(to_none: bool) -> Tensor:
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, METHODS.parse("ef-signsgd"), min_size=0):
        for step in range(5):
            optimizer.zero_grad(set_to_none=to_none)
            loss(model, batch(step)).backward()
            first = next(model.parameters()).grad
            optimizer.step()
            assert next(model.parameters()).grad is first
    return flat(model)


def zeroed_both_ways() -> tuple[Tensor, Tensor]:
    return zeroed(True), zeroed(False)


def test_gradients_that_stay_in_the_buffer_are_taken_from_there() -> None:
    """After a step p.grad is a part of the bucket, and backward may add to it in place."""
    anew, kept = on_ranks(zeroed_both_ways, 2)[0]
    assert torch.equal(anew, kept)


class Late(torch.autograd.Function):
    """Takes its time in the backward pass, as the layers before it would."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        time.sleep(0.3 * PATIENCE)
        return g


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(Late.apply(self.first(x)))  # type: ignore[no-untyped-call]
        return out


def overlapped() -> dict[str, float]:
    torch.manual_seed(0)
    model = Slow()
    optimizer = sgd(model)
    method = Method(ScatterGather(Channel(Qsgd(bits=4))), overlap=SMALL)
    with tw.attach(model, optimizer, method, min_size=200) as wire:
        train(model, optimizer, range(2))
        events = wire.events()
    when = {e.what: e.start for e in events if e.bucket == 0 or e.what == "backward ends"}  # the last of a kind
    done = max(e.stop for e in events if e.bucket == 0)
    return {
        "launch": when["launch"],
        "done": done,
        "ends": when["backward ends"],
        "buckets": len(wire.plan().parcels),
    }


def test_a_full_bucket_travels_while_backward_goes_on() -> None:
    """The last layer's bucket is launched, exchanged and decoded before the first layer has its gradient."""
    for when in on_ranks(overlapped, 2):
        assert when["buckets"] > 1
        assert when["launch"] < when["done"] < when["ends"]


def pipelined() -> list[tuple[str, float, float, int]]:
    torch.manual_seed(0)
    model = nn.Linear(1024, 2048, bias=False)
    optimizer = sgd(model)
    method = Method(ScatterGather(Channel(Qsgd(bits=4))), overlap=Overlap(chunk_mb=1.0, in_flight=3))
    with tw.attach(model, optimizer, method) as wire:
        for _ in range(3):
            model(torch.randn(2, 1024)).square().mean().backward()
            optimizer.step()
        return [(e.what, e.start, e.stop, e.chunk) for e in wire.events()]


def test_chunks_are_encoded_while_others_are_on_the_wire() -> None:
    events = on_ranks(pipelined, 2)[0]
    assert max(chunk for *_, chunk in events) == 7
    wires = [(start, stop, chunk) for what, start, stop, chunk in events if what == "wire" and chunk >= 0]
    during = [
        (what, mine)
        for what, start, stop, mine in events
        for low, high, other in wires
        if what in ("encode", "decode") and mine != other and low < start and stop < high
    ]
    assert {"encode", "decode"} <= {what for what, _ in during}


class Gated(nn.Module):
    """`maybe` is used on some ranks, `never` on none; `tied` twice; `frozen` has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.maybe, self.never = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.out, self.frozen = nn.Linear(16, 4), nn.Linear(16, 16)
        self.also_tied = self.tied
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, used: bool = True) -> Tensor:
        h = self.also_tied(torch.tanh(self.tied(self.frozen(x))))
        out: Tensor = self.out(h) + (self.maybe(h) if used else 0)
        return out


def gated(method: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Gated()
    decay = [p for n, p in model.named_parameters() if n.endswith("weight") and p.requires_grad]
    rest = [p for n, p in model.named_parameters() if n.endswith("bias")]
    optimizer = torch.optim.SGD([{"params": decay, "weight_decay": 0.01}, {"params": rest, "lr": 0.05}], lr=0.1)
    rank = dist.get_rank()
    with tw.attach(model, optimizer, METHODS.parse(method), min_size=50) as wire:
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch(step)
            (model(x, used=rank == 1) - y).square().mean().backward()
            got = None if model.maybe.weight.grad is None else model.maybe.weight.grad.clone()
            optimizer.step()
        names = [item.name for parcel in wire.plan().parcels for item in parcel.items]
    return {
        "equal": equal_everywhere(flat(model)),
        "never": model.never.weight.grad is None,
        "maybe": got is not None and bool(got.abs().sum() > 0),
        "names": sorted(names),
    }


def gated_both_ways() -> list[dict[str, Any]]:
    return [gated("sgd"), gated("qsgd")]


def test_unused_tied_and_frozen_parameters_and_several_groups() -> None:
    for result in itertools.chain(*on_ranks(gated_both_ways, 2)):
        assert result["equal"]
        assert result["never"]
        assert result["maybe"]
        linear = [f"{n}.{p}" for n in ("maybe", "never", "out", "tied") for p in ("bias", "weight")]
        assert result["names"] == sorted(linear)


def idle_rank() -> bool:
    """Rank 1 has no loss in step 1; its optimizer step takes part all the same."""
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0):
        for step in range(3):
            optimizer.zero_grad()
            if dist.get_rank() == 0 or step != 1:
                loss(model, batch(step)).backward()
            optimizer.step()
    return equal_everywhere(flat(model))


def test_a_rank_without_a_backward_pass_does_not_stop_the_others() -> None:
    assert all(on_ranks(idle_rank, 2))


def compiled_and_bf16() -> dict[str, bool]:
    """Compiled on rank 0 only: the other rank's names are the plain ones, and both must agree."""
    out = {}
    for kind in ("compiled", "bf16"):
        model: Any = net()
        if kind == "bf16":
            model = model.bfloat16()
        elif dist.get_rank() == 0:
            model = torch.compile(model, backend="aot_eager")
        optimizer = sgd(model)
        with tw.attach(model, optimizer, tw.methods.ecq_sgd(), min_size=0) as wire:
            dtype = next(model.parameters()).dtype
            train(model, optimizer, range(3), lambda s, d=dtype: (batch(s)[0].to(d), batch(s)[1].to(d)))  # type: ignore[misc]
            out[kind] = equal_everywhere(flat(model).float()) and "_orig_mod" not in str(wire.plan())
    return out


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_and_bfloat16() -> None:
    for result in on_ranks(compiled_and_bf16, 2):
        assert result == {"compiled": True, "bf16": True}


def warm_and_switched() -> dict[str, Any]:
    model = net()
    optimizer = sgd(model)
    warm = Method(tw.methods.ecq_sgd().exchange, Sync(warmup=3))
    with tw.attach(model, optimizer, warm, min_size=0) as wire:
        train(model, optimizer, range(3))
        dense = wire.stats()["bits_per_element"]
        start = flat(model)
        train(model, optimizer, range(3, 4))
        first = wire.stats()
        before = wire.state_dict()[f"rank{dist.get_rank()}"]["tensors"]
        wire.switch(tw.methods.ef_signsgd())
        after = wire.state_dict()[f"rank{dist.get_rank()}"]["tensors"]
        kept = before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
        train(model, optimizer, range(4, 8))
        stats = wire.stats()
    reference = net()
    optimizer = sgd(reference)
    with tw.attach(reference, optimizer, tw.methods.sgd()):
        train(reference, optimizer, range(3))
    return {
        "dense": dense,
        "as sgd": torch.equal(flat(reference), start),
        "thin": (first["bytes_sent"] - dense * 3 * 1108 / 8),
        "kept": kept,
        "rounds": stats["rounds"],
        "grew": stats["bytes_sent"] > first["bytes_sent"],
        "equal": equal_everywhere(flat(model)),
    }


def test_warm_up_is_uncompressed_and_the_method_can_be_switched() -> None:
    for result in on_ranks(warm_and_switched, 2):
        assert 32 <= result["dense"] < 34  # two ranks: an all-reduce sends each element once; the rest is agreements
        assert result["as sgd"]
        assert result["thin"] < 1108
        assert result["kept"]
        assert result["rounds"] == 8
        assert result["grew"]
        assert result["equal"]


def described() -> tuple[str, dict[str, float]]:
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.qsgd(bits=4), min_size=100, exclude=["4.*"]) as wire:
        train(model, optimizer, range(4))
        return str(wire.plan()), wire.stats()


def test_the_plan_names_every_tensor_and_stats_are_numbers() -> None:
    plan, stats = on_ranks(described, 2)[0]
    compressed, aside = plan.split("float32, side bucket")
    assert "2.weight" in compressed
    assert "4.weight" not in compressed
    assert all(name in aside for name in ("4.weight", "4.bias", "0.bias"))
    assert all(isinstance(value, int | float) for value in stats.values())
    assert stats["elements"] == 4 * 1108
    assert 0 < stats["nmse"] < 0.2
    assert min(stats[k] for k in ("encode_s", "wire_s", "decode_s")) > 0
    assert stats["ratio"] == pytest.approx(4 * stats["elements"] / stats["bytes_sent"])
