"""A language model over slow links: validation loss against seconds and bytes, at equal tokens for all contestants.

A transformer of GPT-2's form reads Python's standard library byte by byte (`lab/corpus.py`). All contestants start
from the same model with one seed, see the same windows in the same order, and step with the same AdamW: warm-up, then
half a cosine down to a tenth of the rate. A contestant first takes a few steps with a copy of the model on free
links; then the uplinks get their rate and the clock starts. The clock stands during validation, for which each rank
reads its share of the windows with its own model.

DDP in float32 would take an hour at the rate. A few of its steps are timed there, and its losses are those of one
process that reads what all ranks would read, which is the same mean gradient. With `timed` the others, too, take
that many steps at the rate, and then train on free links. `extrapolated` marks such rows, whose seconds and bytes are
those of the timed steps times all steps over those.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import thinwire as tw
from thinwire.engine.replicas import equalise
from thinwire.lab import corpus, gpt2, torchft_rival
from thinwire.lab.bench_hosts import FREE, WARM, over_ranks, reshape
from thinwire.lab.launch import Say
from thinwire.lab.measure import mean
from thinwire.lab.net.shaping import transmitted
from thinwire.lab.points import Points
from thinwire.lab.records import Row
from thinwire.lab.rivals import RIVALS
from thinwire.lab.torchft_rival import PREFIX

SHAPE = gpt2.Shape(words=corpus.SYMBOLS, layers=6, width=384, heads=6, context=256)  # 10,841,088 parameters
METHODS = ("ddp", "ddp powersgd-4", "ecq-sgd", "diloco:every=20", "sparse-loco:every=20")
TOO_SLOW = ("ddp", "ddp fp16")
TIMED = 2  # steps of those
ENDS = 0.1  # of the learning rate
WARMUP = 0.1  # of the steps
DECAY, BETAS = 0.1, (0.9, 0.95)


@dataclass(frozen=True)
class Job:
    """What all runs have in common; `batch` windows per rank and step; validation after every `every` steps."""

    rate: str
    shape: gpt2.Shape = SHAPE
    batch: int = 32
    steps: int = 300
    every: int = 30
    validated: int = 256  # windows, of all ranks together
    lr: float = 1e-3
    device: str = "cpu"
    timed: int = 0  # steps at the rate; 0: all
    data: Path | None = None

    def check(self) -> None:
        """Raise a ValueError for settings that train nothing."""
        if min(self.batch, self.steps, self.every, self.validated) < 1 or self.lr <= 0:
            raise ValueError("batch, steps and every are 1 or more, and lr is positive; write --batch 32 --steps 300")
        if self.timed < 0:
            raise ValueError(f"{self.timed} steps cannot be timed; write --timed 20, or leave it out to time all")
        if self.steps % self.every:
            raise ValueError(
                f"{self.steps} steps are not a multiple of {self.every}; write --steps {10 * self.every}"
            )


@dataclass(frozen=True)
class Run:
    """One contestant with one seed."""

    method: str
    seed: int


@dataclass
class _Track(Points):
    """One point per validation, with its loss."""

    held_out: list[float] = field(default_factory=list)

    def mark(self, steps: int, seconds: float, sent: float, loss: float, held_out: float) -> None:
        self.add(steps, seconds, sent, loss)
        self.held_out.append(held_out)


def bench(say: Say, job: Job, runs: Sequence[Run]) -> list[Row]:
    """One row per run, with its curves; this runs on every rank, and the rows of rank 0 count."""
    text = corpus.load(job.data)
    rows = []
    for number, run in enumerate(runs):
        rows.append(_run(say, number, job, run, text))
        if dist.get_rank() == 0:
            say(rows[-1])
        gc.collect()  # DDP is part of a cycle
        if job.device != "cpu":
            torch.cuda.empty_cache()
    return rows


def _run(say: Say, number: int, job: Job, run: Run, text: corpus.Corpus) -> Row:
    net = gpt2.Gpt2(job.shape, run.seed).to(job.device)
    slow, track, own = run.method in TOO_SLOW, _Track(), [dist.get_rank()]
    reshape(FREE)
    with _entered(job, run, copy.deepcopy(net)) as (model, optimizer):
        period = _period(run.method)
        timed = TIMED if slow else period * math.ceil(job.timed / period)
        for step in range(max(WARM, period)):
            _step(job, run, text.train, model, optimizer, step, own)
        if timed:
            reshape(job.rate)
            all_took, all_sent, _ = _stretch(job, run, text.train, model, optimizer, range(timed), own)
            reshape(FREE)
    gc.collect()
    with _together(job, net) if slow else _entered(job, run, net) as (model, optimizer):
        rates = LambdaLR(optimizer, lambda step: _rate(step, job.steps))
        reshape(FREE if timed else job.rate)
        readers = own if not slow else [*range(dist.get_world_size())] if dist.get_rank() == 0 else []
        for begin in range(0, job.steps, job.every):
            some = range(begin, begin + job.every)
            took, sent, loss = _stretch(job, run, text.train, model, optimizer, some, readers, rates)
            if timed:
                took, sent = all_took * len(some) / timed, all_sent * len(some) / timed
            if slow:
                equalise(net, dist.group.WORLD)  # type: ignore[arg-type]
            track.mark(len(some), took, sent, loss, _held_out(job, net, text.held_out))
            if dist.get_rank() == 0:
                say((number, run, int(track.step[-1]), track.seconds[-1], track.held_out[-1]))
    return {
        "method": run.method,
        "seed": run.seed,
        "hosts": dist.get_world_size(),
        "rate": job.rate,
        "params": sum(p.numel() for p in net.parameters()),
        "lr": job.lr,
        "steps": job.steps,
        "tokens": job.steps * job.batch * job.shape.context * dist.get_world_size(),
        "loss": track.loss[-1],
        "held_out": track.held_out[-1],
        "seconds": track.seconds[-1],
        "extrapolated": bool(timed),
        "bytes_sent": int(track.bytes_sent[-1]),
        "curves": {name: list(values) for name, values in vars(track).items()},
    }


def _period(method: str) -> int:
    """Steps from one exchange to the next."""
    if method in RIVALS:
        return 1
    return torchft_rival.parsed(method).every if method.startswith(PREFIX) else tw.method(method).sync.every


@contextmanager
def _entered(job: Job, run: Run, net: nn.Module) -> Iterator[tuple[nn.Module, Optimizer]]:
    with _together(job, net) as (net, optimizer):
        if run.method in RIVALS:
            yield RIVALS[run.method](net), optimizer
            return
        if torchft_rival.is_one(run.method, job.device):
            with torchft_rival.entered(run.method, net, optimizer):
                yield net, optimizer
            return
        with tw.attach(net, optimizer, tw.method(run.method), seed=run.seed):
            yield net, optimizer


@contextmanager
def _together(job: Job, net: nn.Module) -> Iterator[tuple[nn.Module, Optimizer]]:
    """Without communication."""
    yield net, AdamW(net.parameters(), lr=job.lr, betas=BETAS, weight_decay=DECAY)


def _rate(step: int, steps: int) -> float:
    """Warm-up, then half a cosine."""
    first = max(1, round(WARMUP * steps))
    if step < first:
        return (step + 1) / first
    return ENDS + (1 - ENDS) * (1 + math.cos(math.pi * min(1.0, (step - first) / max(1, steps - first)))) / 2


def _step(
    job: Job, run: Run, text: Tensor, model: nn.Module, optimizer: Optimizer, step: int, readers: Sequence[int]
) -> Tensor:
    """One step on the windows of these ranks together; returns the mean loss."""
    optimizer.zero_grad()
    if not readers:
        return torch.zeros((), device=job.device)
    seeds = [(run.seed * 1_000_003 + step) * 1009 + rank for rank in readers]
    words = torch.cat([corpus.windows(text, job.batch, job.shape.context, seed) for seed in seeds])
    with torch.autocast(job.device, dtype=torch.bfloat16, enabled=job.device != "cpu"):
        loss: Tensor = model(words.to(job.device, non_blocking=True))
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


def _stretch(
    job: Job,
    run: Run,
    text: Tensor,
    model: nn.Module,
    optimizer: Optimizer,
    steps: range,
    readers: Sequence[int],
    rates: LambdaLR | None = None,
) -> tuple[float, float, float]:
    """Seconds of the slowest rank, bytes of the busiest, and the mean loss of all."""
    before = transmitted()
    dist.barrier()
    start = time.perf_counter()
    losses = []
    for step in steps:
        losses.append(_step(job, run, text, model, optimizer, step, readers))
        if rates is not None:
            rates.step()
    loss = float(torch.stack(losses).mean())  # waits for the device
    took = time.perf_counter() - start
    dist.barrier()
    slowest, busiest = over_ranks([took, transmitted() - before], dist.ReduceOp.MAX)
    (loss,) = over_ranks([loss], dist.ReduceOp.SUM)
    (read,) = over_ranks([float(bool(readers))], dist.ReduceOp.SUM)
    return slowest, busiest, loss / read


@torch.no_grad()
def _held_out(job: Job, net: nn.Module, text: Tensor) -> float:
    rank, world = dist.get_rank(), dist.get_world_size()
    words = corpus.windows(text, job.validated, job.shape.context, seed=0)[rank::world]
    with torch.autocast(job.device, dtype=torch.bfloat16, enabled=job.device != "cpu"):
        losses = [float(net(some.to(job.device))) * len(some) for some in words.split(64)]
    return mean([sum(losses) / len(words)])[0]
