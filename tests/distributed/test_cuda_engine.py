"""The engine on a GPU, two ranks of gloo on one device: no waits, and what users do to their models.

Where the gradient is known in advance, results must have the bits that they have on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said
from ranks import endings, on_ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from thinwire import kernels
from thinwire.comm.processes import Processes
from thinwire.core.payload import HEADER
from thinwire.core.verdicts import Verdicts
from thinwire.sync import Sync

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
METHODS = [  # their payloads have a known size
    *("sgd", "qsgd:bits=4", "qsgd:bits=8", "ef-signsgd", "bf16", "int8"),
    *("topk:ratio=0.1,indices=packed", "topk:ratio=0.1,block=64", "sketched-sgd:ratio=0.1"),
]
BITS = ["qsgd:bits=4", "ef-signsgd"]  # and their bits do not depend on the backend's sums
STEPS = 3


def data(step: int) -> Any:
    return tuple(t.to(DEVICE) for t in batch(step))


# No waits.


def without_waits(names: list[str]) -> dict[str, tuple[bool, int, int]]:
    """Whether replicas are equal in the end, and the bytes that are pinned half-way and in the end.

    Slots take turns, so a slot may see a bucket for the first time after as many steps as there are slots.
    """
    out = {}
    for name in names:
        model = nn.Sequential(net(), nn.Linear(4, 5000), nn.Linear(5000, 4)).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with tw.attach(model, optimizer, tw.method(name), min_size=0) as wire:
            drivers = wire._transport.lane.drivers
            half = 4 * len(drivers)
            batches = [data(step) for step in range(2 * half)]
            try:
                for step, one in enumerate(batches):
                    if step == half:
                        pinned = sum(driver._pinned.nbytes for driver in drivers)
                    if step == 2:  # kernels have been compiled
                        torch.cuda.synchronize()
                        torch.cuda.set_sync_debug_mode("error")  # for all threads of the process
                    optimizer.zero_grad()
                    loss(model, one).backward()
                    optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            kept = sum(driver._pinned.nbytes for driver in drivers)
        out[name] = equal_everywhere(flat(model).cpu()), pinned, kept
    return out


@pytest.mark.skipif(torch.cuda.is_available() and "gpu" not in kernels.names(), reason="the plain torch kernels wait")
@pytest.mark.parametrize("name", METHODS)
def test_nothing_waits_for_the_host(name: str) -> None:
    for result in on_ranks(without_waits, 2, [name]):
        for equal, pinned, kept in result.values():
            assert equal, name
            assert 0 < kept == pinned, f"{name}: memory is pinned again and again"


# What is checked later.


def damaged(at: int) -> tuple[str, bool]:
    """A bit of a message to rank 0 turns over in the third round."""
    up, rounds = Processes._up, 0

    def bad(self: Processes, buffer: Tensor, device: torch.device, *, exact: bool) -> Tensor:
        if rounds == 2 and dist.get_rank() == 0 and buffer.numel() > HEADER.size:
            buffer[at] ^= 1
        return up(self, buffer, device, exact=exact)

    Processes._up = bad  # type: ignore[method-assign]
    model = net().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tw.attach(model, optimizer, tw.method("qsgd:bits=4"), min_size=0, timeout=20.0):
        for rounds in range(2):
            optimizer.zero_grad()
            loss(model, data(rounds)).backward()
            optimizer.step()
        rounds, before = 2, flat(model)
        optimizer.zero_grad()
        words = said(lambda: loss(model, data(2)).backward())
        return words, torch.equal(flat(model), before)


@pytest.mark.parametrize("at", [HEADER.size + 9, 9])
def test_a_damaged_payload_is_named_before_the_step(at: int) -> None:
    ends = endings(damaged, 2, at)
    words, same = ends[0].result or (ends[0].error, True)
    assert "PayloadError" in words
    assert same
    if at > HEADER.size:
        assert "in step 2, bucket 0" in words
        assert "of rank 1" in words


def test_verdicts_of_a_stream_are_waited_for() -> None:
    stream = torch.cuda.Stream()
    for wrong in (False, True):
        verdicts = Verdicts()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            verdicts.add(torch.full((1,), wrong, device=DEVICE), "it is damaged")
            verdicts.send()
        assert ("it is damaged" in said(verdicts.raise_if_any)) == wrong


# What users do to their models.


class Known(nn.Module):
    """Its gradient is what it is called with, to the bit, on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(40, 31))
        self.image = nn.Parameter(torch.zeros(8, 4, 3, 3))
        self.bias = nn.Parameter(torch.zeros(31))

    def forward(self, wanted: list[Tensor]) -> Tensor:
        out = [(p * g).float().sum() for p, g in zip(self.parameters(), wanted, strict=True)]
        return torch.stack(out).sum()


def wanted(model: nn.Module, step: int, seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(1000 * step + 10 * seed + dist.get_rank())
    return [torch.randn(p.shape, generator=noise).to(p.device, p.dtype) for p in model.parameters()]


def as_it_is(model: nn.Module) -> nn.Module:
    return model


def in_bf16(model: nn.Module) -> nn.Module:
    return model.bfloat16()


def channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, wanted: list[Tensor]) -> Any:
        return checkpoint(self.inner, wanted, use_reentrant=False)


class OnTwoStreams(nn.Module):
    """Half of the gradients arrive on a stream of their own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, wanted: list[Tensor]) -> Tensor:
        parts = list(zip(self.parameters(), wanted, strict=True))
        if not wanted[0].is_cuda:
            return torch.stack([(p * g).sum() for p, g in parts]).sum()
        here, there = torch.cuda.current_stream(), torch.cuda.Stream()
        there.wait_stream(here)
        with torch.cuda.stream(there):
            torch.cuda._sleep(1_000_000)
            first = (parts[0][0] * parts[0][1]).sum()
        here.wait_stream(there)
        return torch.stack([first, *((p * g).sum() for p, g in parts[1:])]).sum()


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "as it is": as_it_is,
    "in bf16": in_bf16,
    "channels last": channels_last,
    "compiled": compiled,
    "checkpointed": Checkpointed,
    "on two streams": OnTwoStreams,
}


def gradients(device: str, way: str, methods: Sequence[str | tw.Method]) -> list[Tensor]:
    """The gradients of every step on this rank, of as many models as there are methods."""
    models, optimizers, wires, out = [], [], [], []
    for name in methods:
        torch.manual_seed(0)
        models.append(WAYS[way](Known().to(device)))
        optimizers.append(torch.optim.SGD(models[-1].parameters(), lr=0.01))
        wires.append(tw.attach(models[-1], optimizers[-1], tw.method(name), min_size=0))
    for step in range(STEPS):
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            model(wanted(model, step, number)).backward()
            for p in model.parameters():
                assert p.grad is not None
                assert p.grad.dtype == p.dtype
                # A copy, since a gradient may lie in the bucket's buffer, which the next step fills again.
                out.append(p.grad.detach().to("cpu", copy=True).contiguous())
            optimizer.step()
    for wire in wires:
        wire.detach()
    return out


def both_devices(way: str, methods: Sequence[str | tw.Method]) -> bool:
    there, here = (gradients(device, way, methods) for device in (DEVICE, "cpu"))
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(there, here, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_have_the_bits_of_the_cpu(way: str) -> None:
    for name in BITS:
        assert all(on_ranks(both_devices, 2, way, [name])), name


def test_two_attaches_in_one_process() -> None:
    assert all(on_ranks(both_devices, 2, "as it is", BITS))


LATE = replace(tw.method("ef-signsgd"), sync=Sync(staleness=1))


def test_rounds_that_are_open_at_the_same_time_share_a_memory() -> None:
    assert all(on_ranks(both_devices, 2, "as it is", [LATE]))


def aside() -> bool:
    """A training loop that does not run on the default stream."""
    with torch.cuda.stream(torch.cuda.Stream()):
        there = gradients(DEVICE, "as it is", BITS)
    here = gradients("cpu", "as it is", BITS)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(there, here, strict=True))


def test_training_on_another_stream() -> None:
    assert all(on_ranks(aside, 2))


def one_backward() -> bool:
    """Two wires hear the same backward pass."""
    models = [net(seed).to(DEVICE) for seed in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    wires = [
        tw.attach(m, o, tw.method(name), min_size=0) for m, o, name in zip(models, optimizers, BITS, strict=True)
    ]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum((loss(model, data(step)) for model in models), torch.zeros((), device=DEVICE)).backward()
        for optimizer in optimizers:
            optimizer.step()
    for wire in wires:
        wire.detach()
    return all(equal_everywhere(flat(model).cpu()) for model in models)


def test_two_wires_hear_one_backward_pass() -> None:
    assert all(on_ranks(one_backward, 2))


def scaled(name: str) -> tuple[bool, list[float], list[float], float]:
    """A GradScaler that starts so high that the first steps overflow."""
    model = net().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**30, growth_interval=1000)
    losses, scales = [], []
    with tw.attach(model, optimizer, tw.method(name), min_size=0) as wire:
        for step in range(60):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.float16 if DEVICE == "cuda" else torch.bfloat16):
                out = model(data(step)[0])
            value = (out.float() - data(step)[1]).square().mean()
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(value.item())
            scales.append(scaler.get_scale())
        finite = all(
            bool(t.isfinite().all()) for t in wire.state_dict()[f"rank{dist.get_rank()}"]["tensors"].values()
        )
    return equal_everywhere(flat(model).cpu()) and finite, losses, scales, float(flat(model).isfinite().all())


@pytest.mark.parametrize("name", ["qsgd:bits=4", "ecq-sgd"])
def test_amp_with_a_scaler(name: str) -> None:
    results = on_ranks(scaled, 2, name)
    for equal, losses, scales, finite in results:
        assert equal
        assert finite
        assert scales[-1] < 2.0**30
        assert scales == results[0][2]
        assert sum(losses[-5:]) < sum(losses[:5])


def poisoned() -> tuple[bool, bool, bool]:
    """One rank has a NaN in the second step: nothing is encoded, memories stay, the third step is as usual."""
    model = net().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tw.attach(model, optimizer, tw.method("ef-signsgd"), min_size=0) as wire:
        for step in range(3):
            before = {k: t.clone() for k, t in _memories(wire).items()}
            weights = flat(model)
            optimizer.zero_grad()
            value = loss(model, data(step))
            (value * float("nan") if step == 1 and dist.get_rank() else value).backward()
            if step == 1:
                nan = all(bool(p.grad.isnan().all()) for p in model.parameters() if p.grad is not None)
                kept = all(torch.equal(before[key], t) for key, t in _memories(wire).items())
            optimizer.step()
            if step == 1:
                kept = kept and torch.equal(weights, flat(model))
    return nan, kept, equal_everywhere(flat(model).cpu())


def _memories(wire: tw.Wire) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = wire.state_dict()[f"rank{dist.get_rank()}"]["tensors"]
    return tensors


def test_a_nan_of_one_rank() -> None:
    assert all(all(result) for result in on_ranks(poisoned, 2))
