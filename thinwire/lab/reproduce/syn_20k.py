"""Syn-20K in real processes: what every rank does, and where its seconds go.

Linear regression with 20,000 features and 50,000 samples, half of them on each of two hosts:

    y = <w*, x> + e,    g_i = X_i^T (X_i w - y_i) / b,    w = w - lr mean_i decode(encode(g_i))

x is standard normal, e is 0.1 times that, and w* is a random direction of length 1. A batch is b samples that lie
side by side: they are independent, and need no copy. Nothing overlaps, so that the stages add up to the whole:

    encode    memory, rounding and code
    wire      until the last message has arrived, including the wait for peers; for 32 bits, including the ring's sums
    decode    for the messages of all ranks, and their mean
    compute   the rest: the gradient, up to the slowest rank's (a barrier), and the step of w

Each is the mean over ranks. The loss is that of 4,000 samples nobody trained on. There is one data set; a seed
decides the batches and the rounding.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

import thinwire as tw
from thinwire.comm.processes import Processes
from thinwire.core.clock import Clock
from thinwire.core.method import Method
from thinwire.core.types import Layout
from thinwire.lab.launch import Say
from thinwire.lab.measure import mean
from thinwire.lab.member import Member
from thinwire.lab.net.shaping import transmitted
from thinwire.lab.records import Row

STAGES = ("compute", "encode", "wire", "decode")
NOISE = 0.1
WARM = 20  # steps that are taken and forgotten: threads, buffers and connections


@dataclass(frozen=True)
class Job:
    """What decides the numbers of the runs; sizes, except the batch, are those of all ranks together."""

    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    features: int = 20_000
    samples: int = 50_000
    tests: int = 4_000
    batch: int = 256
    steps: int = 1_000
    lr: float = 0.005


@dataclass(frozen=True)
class _Data:
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def method_of(name: str, features: int) -> Method:
    """The method of a bar: "32-bit", or QSGD or ECQ-SGD with its levels. One L2 scale, and rANS."""
    if name == "32-bit":
        return tw.methods.sgd()
    way, levels = name.rsplit("-", 1)
    if way == "QSGD":
        return tw.methods.qsgd(levels=int(levels), norm="l2", block=features, exchange="all-gather", code="rans")
    return tw.methods.ecq_sgd(levels=int(levels), block=features, exchange="all-gather")


def descend(say: Say, job: Job) -> list[Row]:
    """One row per method and seed; this runs on every rank, and the rows of rank 0 count."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data, rows = _draw(job, rank, ranks), []
    group = dist.group.WORLD
    assert group is not None
    driver = Processes({tuple(range(ranks)): group})
    for name in job.methods:
        _run(job, name, driver, data, 0, WARM)
    for seed in job.seeds:
        for name in job.methods:
            rows.append({"method": name, "seed": seed, **_run(job, name, driver, data, seed, job.steps)})
            if rank == 0:
                say((len(rows), name))
    return rows


def _draw(job: Job, rank: int, ranks: int) -> _Data:
    """Samples of one rank; w* is the same on all."""
    truth = torch.randn(job.features, generator=torch.Generator().manual_seed(2**31))
    truth /= truth.norm()
    g = torch.Generator().manual_seed(rank)
    x, test_x = (torch.randn(count // ranks, job.features, generator=g) for count in (job.samples, job.tests))
    y, test_y = (some @ truth + NOISE * torch.randn(len(some), generator=g) for some in (x, test_x))
    return _Data(x, y, test_x, test_y)


def _run(job: Job, name: str, driver: Processes, data: _Data, seed: int, steps: int) -> Row:
    """Loss, seconds and bytes of one run, each the mean over ranks."""
    member = Member(method_of(name, job.features).exchange, Layout.flat(job.features), driver.comm, seed)
    w, spent = torch.zeros(job.features), dict.fromkeys(STAGES, 0.0)
    g = torch.Generator().manual_seed(1000 * seed + driver.comm.rank)
    dist.barrier()
    before, begun = transmitted(), time.perf_counter()
    for step in range(steps):
        gradient = _gradient(job, data, w, g)
        dist.barrier()
        clock = Clock()
        w -= job.lr * driver.run(member.step(gradient, step, clock=clock), clock)
        for span in clock.spans:
            if span.what in spent:
                spent[span.what] += span.stop - span.start
    seconds = time.perf_counter() - begun
    dist.barrier()  # now every host has received, so that every byte has been counted
    sent = transmitted() - before
    spent["compute"] = seconds - sum(spent.values())
    loss = float((data.test_x @ w - data.test_y).square().mean()) / 2
    names = ("loss", "seconds", "bytes_sent", *(f"{stage}_s" for stage in STAGES))
    return dict(zip(names, mean([loss, seconds, sent, *spent.values()]), strict=True))


def _gradient(job: Job, data: _Data, w: Tensor, g: torch.Generator) -> Tensor:
    at = job.batch * int(torch.randint(len(data.x) // job.batch, (1,), generator=g))
    x, y = data.x[at : at + job.batch], data.y[at : at + job.batch]
    return (x @ w - y) @ x / job.batch
