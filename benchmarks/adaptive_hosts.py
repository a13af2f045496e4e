"""A step between two hosts with a setting for each tensor, beside one setting for all of them.

    sudo python benchmarks/adaptive_hosts.py [resnet50] [gpt2]

Writes benchmarks/data/adaptive-hosts.csv; rows of a net that is not named stay. benchmarks/adaptive.py forecasts such
steps from shapes; here links, nets and gradients are real. Two hosts of a lab, which share the cores of the machine,
train ResNet-50 on Fashion-MNIST (23.5 million parameters) with SGD, or GPT-2 small on words of Python's standard
library with AdamW. `none` is a step without communication.

`adaptive` chooses from the gradients of its first steps, at a rate that is not limited. Then its steps are timed:
they add up gradients for the next choice, which is not made among them. The shares of `lags, hidden` are the largest
that hide behind backward at the rate: `tw.sync.hidden` finds them from when gradients are complete in a step alone.

Methods take turns. A row is the median of all timed steps, each as long as that of the slower host.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torch.autograd import backward
from torch.optim import Optimizer

import thinwire as tw
from thinwire.lab import gpt2, records, uneven
from thinwire.lab.bench_hosts import FREE, WARM, Contestant, over_ranks, reshape, sample
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network
from thinwire.lab.net.shaping import congestion
from thinwire.sim.load import Load
from thinwire.sim.problem import Problem
from thinwire.sync import Layer, hidden

OUT = Path(__file__).parent / "data" / "adaptive-hosts.csv"
HOSTS, RATES = 2, ("1gbit", "100mbit")
LATENCY = 100e-6  # of an exchange, for the shares that hide
TURNS, TIMED = 2, 5
EVERY = (TIMED + 1) * len(RATES) + WARM  # steps from one choice to the next: none is made among the timed ones
NETS: dict[str, Callable[[], Problem]] = {
    "resnet50": partial(uneven.resnet, HOSTS, 0, 64, images=4),
    "gpt2": partial(uneven.words, HOSTS, 0, replace(gpt2.Shape(), context=16), windows=2),
}
TOPK = "topk:ratio=0.01,indices=packed"
UNIFORM = {  # the row with one setting for all that a row is compared with
    "adaptive": "qsgd:bits=4",
    "adaptive:kind=ratio": TOPK,
    "lags": TOPK,
    "lags, hidden": TOPK,
}
ROWS = ("none", *dict.fromkeys(UNIFORM.values()), "adaptive", "adaptive:kind=ratio", "lags")
Step = Callable[[], None]


def stepper(problem: Problem, net: nn.Module, optimizer: Optimizer) -> Step:
    """A step on the next batch of this rank."""
    count = iter(range(sys.maxsize))

    def step() -> None:
        optimizer.zero_grad()
        backward(problem.loss(net, dist.get_rank(), next(count)))
        optimizer.step()

    return step


def layers(problem: Problem) -> list[Layer]:
    """How long backward goes on after each gradient is complete, on rank 0, without communication."""
    return Load.measured(problem.model(), lambda net: problem.loss(net, dist.get_rank(), 0)).layers()


def method_of(row: str, seen: list[Layer], rate: str) -> tw.Method:
    """What is exchanged at this rate in the steps of a row."""
    if row == "lags, hidden":
        return tw.methods.lags(0.01, hidden(seen, HOSTS, rate, LATENCY))
    method = tw.method(row)
    adapt = method.sync.adapt
    return method if adapt is None else replace(method, sync=replace(method.sync, adapt=replace(adapt, every=EVERY)))


@contextmanager
def contestant(row: str, problem: Problem, seen: list[Layer], rate: str) -> Iterator[Contestant]:
    """A fresh net under the row's method."""
    net = problem.model()
    optimizer = problem.optimizer(net.parameters())
    if row == "none":
        yield Contestant(stepper(problem, net, optimizer))
    else:
        method = method_of(row, seen, rate)
        with tw.attach(net, optimizer, method) as wire:
            warm = WARM if method.sync.adapt is None else EVERY + 1
            yield Contestant(stepper(problem, net, optimizer), wire.stats, warm)


def steps(say: Say, net: str) -> list[records.Row]:
    """What each host does."""
    problem = NETS[net]()
    seen = layers(problem)
    turn = [(row, list(RATES)) for row in ROWS] + [("lags, hidden", [rate]) for rate in RATES]
    times: dict[tuple[str, str], list[float]] = {}
    sent: dict[tuple[str, str], float] = {}
    for row, rates in TURNS * turn:
        reshape(FREE)
        with contestant(row, problem, seen, rates[0]) as one:
            for _ in range(one.warmup):
                one.step()
            for rate in rates:
                reshape(rate)
                one.step()
                before = one.stats().get("bytes_sent", 0.0)
                slowest = over_ranks([sample(one) for _ in range(TIMED)], dist.ReduceOp.MAX)
                times.setdefault((row, rate), []).extend(slowest)
                sent[row, rate] = (one.stats().get("bytes_sent", 0.0) - before) / TIMED
                if dist.get_rank() == 0:
                    say(f"{net}, {rate}, {row}: {1e3 * statistics.median(slowest):.0f} ms")
        gc.collect()
    return [row_of(net, row, rate, times, sent[row, rate]) for row, rate in times]


def row_of(net: str, row: str, rate: str, times: dict[tuple[str, str], list[float]], sent: float) -> records.Row:
    """A line of the file."""
    low, middle, high = records.quantiles(times[row, rate])
    return {
        "net": net,
        "hosts": HOSTS,
        "rate": rate,
        "congestion": congestion(),
        "method": row,
        "step_ms": 1e3 * middle,
        "step_ms_p20": 1e3 * low,
        "step_ms_p80": 1e3 * high,
        "mb_sent": sent / 1e6 or None,
        "over_uniform": middle / statistics.median(times[UNIFORM[row], rate]) if row in UNIFORM else None,
    }


def main(wanted: list[str]) -> None:
    """Start the hosts, for one net after the other."""
    for net in wanted:
        if net not in NETS:
            raise SystemExit(f"{net!r} is no net; write {', '.join(NETS)}")
    rows = [row for row in records.load(OUT) if row["net"] not in wanted] if OUT.exists() else []
    for net in wanted:
        with Network(HOSTS, FREE) as network:
            rows += [*launch(steps, HOSTS, net, hosts=network, timeout=3600.0)[0]]
    records.save(OUT, rows)


if __name__ == "__main__":
    main(sys.argv[1:] or list(NETS))
