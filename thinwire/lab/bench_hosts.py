"""A training step over shaped links under each method, beside torch's DDP and its hooks, in one run.

Contestants are a run without communication, DDP in float32, DDP with its fp16 hook, DDP with its PowerSGD hook of
rank 4 in one bucket (on gloo it hangs with more), and every method. All take turns. In its turn a contestant gets a
copy of the model of `bench_step`, warms up while the links are free, takes one untimed step at the rate, and then
timed ones. It is removed before the next one starts, so that memory holds one at a time.

A step starts at a barrier and ends when the slowest rank has ended. Where a method exchanges every H steps, H steps
are timed together and divided. Bytes are those that the busiest host put on its wire between the barriers of a turn,
including headers, and

    wire_bound_ms = bits of the busiest host / rate,   wire_share = wire_bound_ms / step_ms,
    cpu_ms        = processor time of all ranks / cores.

No step can be shorter than either bound, whatever overlaps. (The shaper's bucket lets 80 KiB through at once at 100
Mbit/s and 122 KiB at 1 Gbit/s, which shows where a step sends little.) The second bound is specific to this lab:
hosts that share the cores of one machine compute more slowly than hosts would. encode, wire and decode are rank 0's
sums over threads that run at the same time, so that together they may exceed the step.

With device "cuda" the hosts share one GPU, and the model is GPT-2 small (`lab/gpt2.py`) with bf16 autocast. They take
turns on it, so that a step without communication is as long as those of all of them together. encode and decode are
what it takes to queue them.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.core.clock import Span
from thinwire.core.rates import bits_per_second
from thinwire.engine.legal import can_go_into_forward
from thinwire.engine.planner import ROUNDS
from thinwire.lab import gpt2
from thinwire.lab.bench_step import STEP, TIMED, batch, done, model, stepper, where
from thinwire.lab.launch import Say
from thinwire.lab.net.shaping import congestion, shape, transmitted
from thinwire.lab.records import Row, quantiles
from thinwire.lab.rivals import RIVALS
from thinwire.lab.shapes import Shapes
from thinwire.lab.step_sizes import optimizer_of
from thinwire.sim.models import MODELS

METHODS = (*("sgd", "bf16", "int8", "qsgd:bits=4", "ecq-sgd", "ef-signsgd", "powersgd:rank=4"),)
PARAMS = 24 << 20
BATCH = 1  # hosts that share cores compute more slowly than real ones, so they are given little to compute
GPT2_PARAMS = 124_439_808
GPU_BATCH, SEQUENCE = 6, 1024  # of GPT-2 small, so that four hosts on one GPU compute for 50 to 150 ms
FREE = "100gbit"  # more than this machine can send
PLANS: tuple[Literal["planned", "mg-wfbp"], ...] = ("planned", "mg-wfbp")
PLANNING = 2 * (ROUNDS + 1) + 2  # steps until buckets have been planned, and one after that
WARM = 4  # steps: DDP cuts its buckets again after the first, and its PowerSGD begins with the third
FEWEST, MOST = 3, 10  # timed samples: in all, and in one turn
PATIENCE = 240.0  # seconds of one float32 step, after which gloo would soon give up


@dataclass(frozen=True)
class Job:
    """What to measure; `budget` is how many seconds the timed steps of one contestant take in all turns."""

    methods: Sequence[str]
    params: int
    rate: str
    turns: int
    budget: float
    batch: int = BATCH
    device: str = "cpu"
    text: gpt2.Shape | None = None  # train this transformer instead of the chain of layers
    sequence: int = SEQUENCE  # words
    model: str | None = None  # train a net of the shapes of this model instead
    planned: bool = False  # every method once more, with planned buckets
    computing: float | None = None  # seconds that a step of the model takes, asleep, in place of computing a batch

    def of_model(self, name: str, computing: float | None = None) -> Job:
        """The same with the shapes of a named model; ValueError where there is none, or on a GPU."""
        if self.device != "cpu":
            raise ValueError("hosts on a GPU train GPT-2 small; leave --model out, or write --device cpu")
        params = sum(weight.numel for weight in MODELS[name]())
        return replace(self, model=name, params=params, computing=computing)

    @property
    def work(self) -> str:
        """What a step computes, in words."""
        return f"batch of {self.batch}" if self.computing is None else f"{1e3 * self.computing:,.0f} ms asleep"

    def check(self, hosts: int) -> None:
        """Raise a ValueError for settings that cannot be measured."""
        if self.params < 1 or self.turns < 1 or self.batch < 1 or not 0 < self.budget < math.inf:
            raise ValueError(
                "params, repeats, batch and budget are positive numbers; write --params 25165824 --repeats 3"
            )
        if self.text is not None and not 0 < self.sequence <= self.text.context:
            raise ValueError(f"a sequence has 1 to {self.text.context} words; write --sequence {self.text.context}")
        for text in self.methods:
            tw.method(text)
        slowest = 2 * (hosts - 1) / hosts * 32 * self.params / bits_per_second(self.rate)
        if slowest > PATIENCE:
            fits = int(self.params * PATIENCE / slowest)
            raise ValueError(
                f"at {self.rate} a float32 step would take {slowest:.0f} s; write --params {fits} or less"
            )


@dataclass(frozen=True)
class Contestant:
    """How it steps, what its counters say, and how many steps it warms up."""

    step: Callable[[], None]
    stats: Callable[[], dict[str, float]] = dict
    warmup: int = WARM
    period: int = 1  # steps from one exchange to the next
    at_rate: int = 1  # steps at the rate that are not timed
    settle: Callable[[], None] | None = None  # where a step leaves to the next one what has not arrived: ends it
    events: Callable[[], list[Span]] | None = None  # what happened in the last step, where the engine ran it


@dataclass
class _Measured:
    """The samples of one contestant; times and bytes are the largest of all ranks, `spent` is this rank's."""

    steps: int = 0
    times: list[float] = field(default_factory=list)
    bytes: int = 0
    cpu: float = 0.0  # seconds of all ranks together
    spent: dict[str, float] = field(default_factory=dict)


Steps = Callable[[nn.Module, Optimizer], Callable[[], None]]  # what a step is, for a model and its optimizer
Build = Callable[[nn.Module, Steps], AbstractContextManager[Contestant]]


@contextmanager
def _alone(net: nn.Module, steps: Steps) -> Iterator[Contestant]:
    yield Contestant(steps(net, SGD(net.parameters(), lr=STEP.lr)))


@contextmanager
def _rival(net: nn.Module, steps: Steps, *, wrap: Callable[[nn.Module], nn.Module]) -> Iterator[Contestant]:
    yield Contestant(steps(wrap(net), SGD(net.parameters(), lr=STEP.lr)))


@contextmanager
def attached(net: nn.Module, steps: Steps, *, text: str) -> Iterator[Contestant]:
    """A model under a method of ours."""
    method = tw.method(text)
    optimizer = optimizer_of(method, STEP, net.parameters())
    with tw.attach(net, optimizer, method) as wire:
        warm = WARM + method.sync.warmup
        yield Contestant(steps(net, optimizer), wire.stats, warm, method.sync.every, events=wire.events)


@contextmanager
def _planned(
    net: nn.Module, steps: Steps, *, text: str, buckets: Literal["planned", "mg-wfbp"]
) -> Iterator[Contestant]:
    """The same with planned buckets, which are measured and cut at the rate, in steps that are not timed."""
    method = replace(tw.method(text), overlap=tw.Overlap(buckets=buckets))
    optimizer = optimizer_of(method, STEP, net.parameters())
    with tw.attach(net, optimizer, method) as wire:
        yield Contestant(steps(net, optimizer), wire.stats, method.sync.warmup, method.sync.every, at_rate=PLANNING)


@contextmanager
def _into_forward(net: nn.Module, steps: Steps, *, text: str) -> Iterator[Contestant]:
    """The same in small buckets, sent as they are needed, whose results may arrive in the next forward pass."""
    method = replace(tw.method(text), overlap=tw.Overlap(bucket_mb=4, chunk_mb=4, in_flight=2, into_forward="need"))
    optimizer = optimizer_of(method, STEP, net.parameters())
    with tw.attach(net, optimizer, method) as wire:
        step, warm = steps(net, optimizer), method.sync.warmup
        yield Contestant(step, wire.stats, warm, method.sync.every, at_rate=PLANNING, settle=wire.settle)


BASELINES: dict[str, Build] = {
    "no communication": _alone,
    **{name: partial(_rival, wrap=wrap) for name, wrap in RIVALS.items()},
}


def bench(say: Say, job: Job) -> list[Row]:
    """One row per contestant; this runs on every rank, and the rows of rank 0 count."""
    builds = BASELINES | {text: partial(attached, text=text) for text in job.methods}
    if job.planned:
        builds |= {
            f"{text}, {buckets}": partial(_planned, text=text, buckets=buckets)
            for text in job.methods
            for buckets in PLANS
        }
        into = [text for text in job.methods if can_go_into_forward(tw.method(text))]
        builds |= {f"{text}, into forward": partial(_into_forward, text=text) for text in into}
    measured = {name: _Measured() for name in builds}
    whole, steps = _work(job)
    for turn in range(job.turns):
        for name, build in builds.items():
            if dist.get_rank() == 0:
                say((turn, name))
            _turn(build, whole, steps, job, measured[name])
            gc.collect()  # DDP is part of a cycle, and as large as the model
            if job.device != "cpu":
                torch.cuda.empty_cache()
    size = sum(p.numel() for p in whole.parameters())
    ddp = quantiles(measured["ddp"].times)[1]
    return [_row(name, one, job, size, ddp) for name, one in measured.items()]


def _work(job: Job) -> tuple[nn.Module, Steps]:
    """The model that all contestants train, and what a step of it is."""
    if job.model is not None:
        start = torch.full((1,), 1.0 + 0.01 * dist.get_rank())
        shapes = Shapes(job.model, job.batch, job.computing)
        return shapes, lambda net, optimizer: stepper(net, start, optimizer)
    if job.text is None:
        whole, x = model(job.params), batch(job.params, job.batch).to(job.device)
        return whole.to(job.device), lambda net, optimizer: done(stepper(net, x, optimizer), job.device)
    words = gpt2.text(job.text, job.batch, job.sequence, dist.get_rank()).to(job.device)
    whole = gpt2.Gpt2(job.text).to(job.device)
    return whole, lambda net, optimizer: done(gpt2.stepper(net, words, optimizer), job.device)


def _turn(build: Build, whole: nn.Module, steps: Steps, job: Job, measured: _Measured) -> None:
    reshape(FREE)
    with build(copy.deepcopy(whole), steps) as contestant:
        for _ in range(contestant.warmup):
            contestant.step()
        reshape(job.rate)
        for _ in range(contestant.at_rate - 1):
            contestant.step()
        (longest,) = over_ranks([sample(contestant)], dist.ReduceOp.MAX)
        fewest = math.ceil(FEWEST / job.turns)
        count = min(MOST, max(fewest, int(job.budget / job.turns / (longest * contestant.period))))
        _settle(contestant)
        dist.barrier()
        bytes_before, before, cpu = transmitted(), contestant.stats(), time.process_time()
        lead = contestant.settle is not None  # a first step, which has nothing to wait for, is not timed
        times = [sample(contestant) for _ in range(count + lead)][lead:]
        _settle(contestant)
        dist.barrier()  # now every host has received, so that every byte has been counted
        bytes_after, after, cpu = transmitted(), contestant.stats(), time.process_time() - cpu
        *slowest, busiest = over_ranks([*times, bytes_after - bytes_before], dist.ReduceOp.MAX)
        (cpu,) = over_ranks([cpu], dist.ReduceOp.SUM)
    measured.times += slowest
    measured.bytes += int(busiest)
    measured.cpu += cpu
    measured.steps += (count + lead) * contestant.period
    for name in after:
        measured.spent[name] = measured.spent.get(name, 0.0) + after[name] - before[name]


def reshape(rate: str) -> None:
    """Every rank sets its own uplink, when nobody is sending."""
    dist.barrier()
    shape(rate)
    dist.barrier()


def _settle(contestant: Contestant) -> None:
    if contestant.settle is not None:
        contestant.settle()


def sample(contestant: Contestant) -> float:
    """Seconds per step on this rank, measured over one period.

    Ranks start together, unless what a step left under way would arrive while they wait for each other.
    """
    if contestant.settle is None:
        dist.barrier()
    start = time.perf_counter()
    for _ in range(contestant.period):
        contestant.step()
    return (time.perf_counter() - start) / contestant.period


def over_ranks(values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
    """The maximum or the sum over all ranks, value by value."""
    found = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(found, op)
    return [float(value) for value in found]


def _row(name: str, one: _Measured, job: Job, size: int, ddp: float) -> Row:
    low, middle, high = quantiles(one.times)
    bits = 8 * one.bytes / one.steps
    bound = bits / bits_per_second(job.rate)
    return {
        "method": name,
        **where(job.device),
        "hosts": dist.get_world_size(),
        "rate": job.rate,
        "congestion": congestion(),
        "params": size,
        "batch": job.batch if job.computing is None else None,
        "computing_ms": None if job.computing is None else 1e3 * job.computing,
        **({} if job.text is None else {"sequence": job.sequence}),
        "steps": one.steps,
        "step_ms": 1e3 * middle,
        "step_ms_p20": 1e3 * low,
        "step_ms_p80": 1e3 * high,
        "tx_bits_per_param": bits / size,
        "wire_bound_ms": 1e3 * bound,
        "wire_share": bound / middle,
        "speedup_over_ddp": ddp / middle,
        "cpu_ms": 1e3 * one.cpu / (os.cpu_count() or 1) / one.steps,
        **{f"{what[:-2]}_ms": 1e3 * one.spent[what] / one.steps if one.spent else None for what in TIMED},
    }
