"""A training step under each method beside torch's DistributedDataParallel, in the same processes and run.

The model is a chain of square layers with a batch of 4, so that the gradient is large and the computing small. DDP
and every method each have a model of their own and take turns, one block of steps at a time; the first step of a
block is not timed. Times are medians of rank 0; bytes are those that it sent. encode, wire and decode are sums over
what runs at the same time in several threads, so that together they may exceed the step.
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


@dataclass
class _Turn:
    """One contestant: how it steps, what its counters say, and what has been measured."""

    step: Callable[[], None]
    stats: Callable[[], dict[str, float]]
    times: list[float] = field(default_factory=list)
    spent: list[dict[str, float]] = field(default_factory=list)  # for each block, the counters of one step


def bench(say: Say, methods: Sequence[str], params: int, repeats: int) -> list[Row]:
    """One row per method; this runs on every rank, and the rows of rank 0 count."""
    x = batch(params)
    with ExitStack() as stack:
        plain = DistributedDataParallel(model(params))
        turns = {"ddp": _Turn(stepper(plain, x, SGD(plain.parameters(), lr=STEP.lr)), dict)}
        for text in methods:
            net, method = model(params), tw.method(text)
            optimizer = optimizer_of(method, STEP, net.parameters())
            wire = stack.enter_context(tw.attach(net, optimizer, method))
            turns[text] = _Turn(stepper(net, x, optimizer), wire.stats)
        for repeat in range(repeats + 1):
            for text, turn in turns.items():
                _block(turn, measure=repeat > 0)
                if dist.get_rank() == 0:
                    say((repeat, text))
    size = sum(p.numel() for p in model(params).parameters())
    return [_row(text, turn, turns["ddp"], size) for text, turn in turns.items() if text != "ddp"]


def model(params: int) -> nn.Module:
    """Square layers without bias, of at most 2^20 weights each and about `params` in all; equal on all ranks.

    Weights and activations keep the scale of what passes through, so that 24 layers have gradients as large as 4
    layers, and few of their elements are exactly 0.
    """
    width, generator = _width(params), torch.Generator().manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(max(1, round(params / width**2))):
        layer = nn.Linear(width, width, bias=False)
        nn.init.kaiming_normal_(layer.weight, SLOPE, generator=generator)
        parts += [layer, nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*parts)


def batch(params: int, size: int = BATCH) -> Tensor:
    """What this rank trains on."""
    return torch.randn(size, _width(params), generator=torch.Generator().manual_seed(dist.get_rank()))


def _width(params: int) -> int:
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


def _row(text: str, turn: _Turn, ddp: _Turn, size: int) -> Row:
    low, middle, high = quantiles(turn.times)
    encode, wire, decode = (quantiles([spent[name] for spent in turn.spent])[1] for name in TIMED)
    baseline = quantiles(ddp.times)
    return {
        "method": text,
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
    }
