"""A training step under each method beside torch's DistributedDataParallel, in the same processes and run.

The model is a chain of square layers with a batch of 4, so that the gradient is large and the computing small. DDP
and every method each have a model of their own and take turns, one block of steps at a time; the first step of a
block is not timed. Times are medians of rank 0; bytes are those that it sent. encode, wire and decode are sums over
what runs at the same time in several threads, so that together they may exceed the step.

On a GPU, which all ranks share, a step ends when the GPU has done it. The host's encode and decode are then what it
takes to queue them; encode_gpu and decode_gpu are sums of what they took on the streams of the lanes, including other
ranks' work in between, measured in turns of their own, in which the GPU does not start before all is queued.
codec_share is both together over DDP's step; alone_ms is a step without communication.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.lab.launch import Say
from thinwire.lab.records import Row, quantiles
from thinwire.lab.step_sizes import Step, optimizer_of

METHODS = ("sgd", "bf16", "int8", "qsgd:bits=4", "ecq-sgd", "ef-signsgd")
WIDTH = 1024  # of a layer, which has 2^20 weights
BATCH = 4
SLOPE = 0.25  # of the activation below 0
STEP = Step(1e-3)
BLOCK = 3  # timed steps of one turn
TIMED = ("encode_s", "wire_s", "decode_s")
ON_GPU = ("encode_gpu_s", "decode_gpu_s")


@dataclass
class _Turn:
    """One contestant: how it steps, what its counters say, and what has been measured."""

    step: Callable[[], None]
    stats: Callable[[], dict[str, float]] = dict
    wire: tw.Wire | None = None
    times: list[float] = field(default_factory=list)
    spent: list[dict[str, float]] = field(default_factory=list)  # for each block, the counters of one step
    on_gpu: list[dict[str, float]] = field(default_factory=list)  # the same of blocks in which the GPU is timed


def bench(say: Say, methods: Sequence[str], params: int, repeats: int, device: str = "cpu") -> list[Row]:
    """One row per method; this runs on every rank, and the rows of rank 0 count."""
    x = batch(params).to(device)
    with ExitStack() as stack:
        plain = DistributedDataParallel(model(params).to(device))
        turns = {"ddp": _Turn(done(stepper(plain, x, SGD(plain.parameters(), lr=STEP.lr)), device))}
        if device != "cpu":
            alone = model(params).to(device)
            turns["alone"] = _Turn(done(stepper(alone, x, SGD(alone.parameters(), lr=STEP.lr)), device))
        for text in methods:
            net, method = model(params).to(device), tw.method(text)
            optimizer = optimizer_of(method, STEP, net.parameters())
            wire = stack.enter_context(tw.attach(net, optimizer, method))
            turns[text] = _Turn(done(stepper(net, x, optimizer), device), wire.stats, wire)
        for repeat in range(repeats + 1):
            for text, turn in turns.items():
                _block(turn, measure=repeat > 0)
                if device != "cpu" and repeat:
                    _block_on_gpu(turn)
                if dist.get_rank() == 0:
                    say((repeat, text))
    size = sum(p.numel() for p in model(params).parameters())
    return [_row(text, turn, turns, size, device) for text, turn in turns.items() if turn.wire is not None]


def where(device: str) -> Row:
    """The GPU's name, for a row; the processor is named anyway."""
    return {} if device == "cpu" else {"device": torch.cuda.get_device_name(device)}


def done(step: Callable[[], None], device: str) -> Callable[[], None]:
    """A step that ends when the GPU has done it, too."""
    if device == "cpu":
        return step

    def and_wait() -> None:
        step()
        torch.cuda.synchronize()

    return and_wait


def model(params: int) -> nn.Module:
    """Square layers without bias, of at most 2^20 weights each and about `params` in all; equal on all ranks.

    Weights and activations keep the scale of what passes through, so that 24 layers have gradients as large as 4
    layers, and few of their elements are exactly 0.
    """
    side, generator = width(params), torch.Generator().manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(max(1, round(params / side**2))):
        layer = nn.Linear(side, side, bias=False)
        nn.init.kaiming_normal_(layer.weight, SLOPE, generator=generator)
        parts += [layer, nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*parts)


def batch(params: int, size: int = BATCH) -> Tensor:
    """What this rank trains on."""
    return torch.randn(size, width(params), generator=torch.Generator().manual_seed(dist.get_rank()))


def width(params: int) -> int:
    """Of a layer."""
    return min(WIDTH, max(1, math.isqrt(params)))


def stepper(net: nn.Module, x: Tensor, optimizer: Optimizer) -> Callable[[], None]:
    """Forward, backward and the optimizer's step, as a loop would do them."""

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(net(x).square().mean())
        optimizer.step()

    return step


def _block(turn: _Turn, *, measure: bool) -> None:
    dist.barrier()
    turn.step()
    before, times = turn.stats(), []
    for _ in range(BLOCK):
        start = time.perf_counter()
        turn.step()
        times.append(time.perf_counter() - start)
    if measure:
        after = turn.stats()
        turn.times += times
        turn.spent.append({name: (after[name] - before[name]) / BLOCK for name in after})


def _block_on_gpu(turn: _Turn) -> None:
    """Some steps whose encoding and decoding are timed on the GPU, apart from the others, because that takes time."""
    if turn.wire is None:
        return
    turn.wire.time_gpu()
    turn.stats()
    before = turn.stats()
    for _ in range(BLOCK):
        turn.step()
    after = turn.stats()
    turn.wire.time_gpu(on=False)
    turn.on_gpu.append({name: (after.get(name, 0.0) - before.get(name, 0.0)) / BLOCK for name in ON_GPU})


def _row(text: str, turn: _Turn, turns: dict[str, _Turn], size: int, device: str) -> Row:
    low, middle, high = quantiles(turn.times)
    encode, wire, decode = (quantiles([spent[name] for spent in turn.spent])[1] for name in TIMED)
    baseline = quantiles(turns["ddp"].times)
    return {
        "method": text,
        **where(device),
        "workers": dist.get_world_size(),
        "params": size,
        "step_ms": 1e3 * middle,
        "step_ms_p20": 1e3 * low,
        "step_ms_p80": 1e3 * high,
        "ddp_ms": 1e3 * baseline[1],
        "ddp_ms_p20": 1e3 * baseline[0],
        "ddp_ms_p80": 1e3 * baseline[2],
        "encode_ms": 1e3 * encode,
        "wire_ms": 1e3 * wire,
        "decode_ms": 1e3 * decode,
        "tx_bits_per_param": 8 * sum(spent["bytes_sent"] for spent in turn.spent) / len(turn.spent) / size,
        **(_row_on_gpu(turn, baseline[1], turns["alone"]) if turn.on_gpu else {}),
    }


def _row_on_gpu(turn: _Turn, ddp: float, alone: _Turn) -> Row:
    encode, decode = (quantiles([spent[name] for spent in turn.on_gpu])[1] for name in ON_GPU)
    return {
        "encode_gpu_ms": 1e3 * encode,
        "decode_gpu_ms": 1e3 * decode,
        "codec_share": (encode + decode) / ddp,
        "alone_ms": 1e3 * quantiles(alone.times)[1],
    }
