"""Train one task under one method on every rank of the default group, and record what it cost.

Bytes are those that a rank really sent, counted where they are sent, averaged over ranks. Bits per element and the
ratio to float32 are those of `wire.stats()`: over all parameters in all steps, also those in which a method exchanges
nothing, up to the last one in which it has. Seconds are those of the training steps alone, without loading, the first
contact of the ranks and the test; with a `rate`, on hosts of a network lab, their uplinks have it. The loss of a run
is that of its last twentieth, over all ranks; progress shows the same of rank 0 on the way, and of all ranks when the
run has ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import thinwire as tw
from thinwire.lab import tasks
from thinwire.lab.bench_hosts import FREE, reshape
from thinwire.lab.intervals import interval
from thinwire.lab.launch import Say
from thinwire.lab.measure import Curve, accuracy, mean, replicas_equal
from thinwire.lab.records import Row
from thinwire.lab.step_sizes import decay, named, optimizer_of, step_of
from thinwire.lab.tasks import Data, Task, batches

PAUSE = 0.1  # seconds between two reports of progress
TIMED = ("encode_s", "wire_s", "decode_s")


@dataclass(frozen=True)
class Job:
    """One training run: task and method by name, and what else decides its numbers.

    Without `optimizer` and `lr` they are what the method states, and what was found for the task.
    """

    task: str
    method: str
    seed: int = 0
    epochs: int | None = None
    data: Path | None = None
    optimizer: str | None = None
    lr: float | None = None
    rate: str | None = None

    def __post_init__(self) -> None:
        tw.method(self.method)
        step_of(tasks.get(self.task), self.method, self.optimizer, self.lr)
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"{self.epochs} epochs train nothing; write --epochs 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: write --seed 0, or another number that is not negative")

    def located(self) -> Job:
        """The same job, with its data found."""
        return replace(self, data=tasks.get(self.task).locate(self.data))

    @property
    def name(self) -> str:
        """The method, and the optimizer if it was asked for."""
        return self.method if self.optimizer is None else named(self.optimizer, self.method)

    def steps(self, workers: int) -> int:
        """Of the run, on each of so many workers."""
        task = tasks.get(self.task)
        return (self.epochs or task.epochs) * (task.images // (task.batch * workers))


@dataclass(frozen=True)
class Progress:
    """What rank 0 reports while it trains."""

    job: int
    step: int
    steps: int
    loss: float


def train_all(say: Say, jobs: Sequence[Job]) -> list[Row]:
    """The records of all jobs, one after the other in the same processes. This runs on every rank."""
    rows: list[Row] = []
    here: tuple[str, Path | None] | None = None
    for number, job in enumerate(jobs):
        if here != (job.task, job.data):
            here, task = (job.task, job.data), tasks.get(job.task)
            data = task.load(job.data)
            _warm(task, data)
        rows.append(train(say, job, data, number))
    return rows


def train(say: Say, job: Job, data: Data, number: int = 0) -> Row:
    """Train, test, and return one row with its curves, the same on every rank except for the seconds."""
    task, rank, world = tasks.get(job.task), dist.get_rank(), dist.get_world_size()
    epochs = job.epochs or task.epochs
    steps = epochs * (len(data.train_x) // (task.batch * world))
    method, step = tw.method(job.method), step_of(task, job.method, job.optimizer, job.lr)
    torch.manual_seed(job.seed)
    model = task.model()
    optimizer = optimizer_of(method, step, model.parameters())
    spoke = 0.0

    def evaluate(chosen: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = task.loss(model(data.train_x[chosen]), data.train_y[chosen])
        torch.autograd.backward(loss)
        return loss.detach()

    if job.rate is not None:
        reshape(FREE)
    with tw.attach(model, optimizer, method, seed=job.seed) as wire:
        if job.rate is not None:
            reshape(job.rate)
        dist.barrier()
        curve = Curve(steps)
        for epoch in range(epochs):
            for chosen in batches(len(data.train_x), task.batch, rank, world, job.seed, epoch):
                decay(optimizer, step, len(curve.losses) / steps)
                loss: Tensor | float
                if method.exchange.served:  # its rule may want several gradients of a batch
                    loss = optimizer.step(partial(evaluate, chosen))  # type: ignore[arg-type]
                else:
                    loss = evaluate(chosen)
                    wire.report_loss(loss)
                    optimizer.step()
                curve.losses.append(float(loss))
                if curve.due:
                    curve.mark(wire.stats()["bytes_sent"])
                if rank == 0 and time.monotonic() > spoke + PAUSE:
                    spoke = time.monotonic()
                    say(Progress(number, len(curve.losses), steps, curve.recent))
        seconds, stats = time.perf_counter() - curve.begun, wire.stats()
        if job.rate is not None:
            reshape(FREE)
        found = wire.consensus()
        equal = replicas_equal(model)
    if method.sync.of.models:
        model.load_state_dict(found.model, strict=False)  # what a user keeps where models differ
    curves = curve.mean()
    if rank == 0:
        say(Progress(number, steps, steps, curves["loss"][-1]))
    bytes_sent, *spent = mean([stats[name] for name in ("bytes_sent", *TIMED)])
    trains = float(stats["steps"] > 0)  # a rank that only serves has nothing to compare with
    trained, ratio, bits = mean([trains, trains * stats["ratio"], trains * stats["bits_per_element"]])
    right = accuracy(model, data.test_x, data.test_y)
    low, high = interval(right, task.tested)
    return {
        "task": job.task,
        "method": job.method,
        "optimizer": step.optimizer or method.recipe.optimizer,
        "seed": job.seed,
        "workers": world,
        "epochs": epochs,
        "steps": steps,
        "lr": step.lr,
        "accuracy": right,
        "accuracy_low": low,
        "accuracy_high": high,
        "tested": task.tested,
        "loss": curves["loss"][-1],
        "loss_steps": curve.span,
        "bytes_sent": round(bytes_sent),
        "bits_per_element": bits / trained,
        "ratio": ratio / trained,
        "rate": job.rate,
        "seconds": seconds,
        **dict(zip(TIMED, spent, strict=True)),
        "replicas_equal": equal,
        "consensus_distance": found.distance,
        "curves": curves,
    }


def without_curves(row: Row) -> Row:
    """The fields that fit on one line of a table."""
    return {name: value for name, value in row.items() if name != "curves"}


def _warm(task: Task, data: Data) -> None:
    """Take one step and discard it, since torch sets itself up in the first."""
    some = slice(0, task.batch)
    torch.autograd.backward(task.loss(task.model()(data.train_x[some]), data.train_y[some]))
