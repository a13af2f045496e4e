"""One run of data-parallel training: four workers share one residual net and exchange gradients through a channel.

    g_i = gradient of worker i's batch,    m = 0.9 m + mean_i decode(encode(g_i)),    w = w - lr m

The rate falls on a straight line to 5% of the first, and residuals follow it. All parameters travel in one message
per worker and step, and are compressed; bits are those of whole messages, including the header.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from thinwire.compressors.identity import Identity
from thinwire.core.channel import Channel
from thinwire.exchange.all_gather import AllGather
from thinwire.lab import tasks
from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Settings, check_methods
from thinwire.lab.reproduce.on_images import filled, task_of
from thinwire.lab.reproduce.parallel import each
from thinwire.lab.reproduce.ring import accuracy, gradients
from thinwire.lab.residual import Residual
from thinwire.lab.step_sizes import END, MOMENTUM
from thinwire.lab.world import World

WORKERS = 4
BATCH = {"digits": 16, "fashion": 32}
LR = 0.2  # of 0.05 and 0.2, the one with float32's least training loss on both tasks, seed 0
FLOAT = Channel(Identity())


@dataclass(frozen=True)
class Run:
    """What decides the numbers of a run."""

    task: str
    channel: Channel
    seed: int
    epochs: int
    data: Path | None = None


def check(name: str, settings: Settings, epochs: Mapping[str, int], channels: Mapping[str, Channel]) -> Settings:
    """Task, numbers and methods of the reproduction `name`; epochs and seeds are filled in."""
    task = task_of(name, settings, epochs)
    if settings.split != "iid":
        raise ValueError(f"{name} deals its images at random; leave --split out")
    check_methods(settings.methods, channels)
    return filled(settings, task, epochs[task.name], 3)


def every(s: Settings, channels: Mapping[str, Channel]) -> tuple[int, Iterator[tuple[str, Run, Row]]]:
    """How many runs the checked settings ask for, and the channel's name and the row of each as it ends."""
    assert s.epochs is not None
    assert s.seeds is not None
    chosen = {name: channel for name, channel in channels.items() if not s.methods or name in s.methods}
    names = [name for name in chosen for _ in range(s.seeds)]
    runs = [Run(s.task, c, seed, s.epochs, s.data) for c in chosen.values() for seed in range(s.seeds)]
    return len(runs), zip(names, runs, each(train, runs, s.jobs), strict=True)


def elements() -> int:
    """How many parameters the net has."""
    return Residual().layout.numel


def train(run: Run) -> Row:
    """Accuracy, the loss of the last epoch, bits per element and seconds of this process."""
    data, batch = images(run.task, run.data), BATCH[run.task]
    net = Residual(halve=run.task == "fashion")
    w = net.start(run.seed)
    world = World(AllGather(run.channel), net.layout, WORKERS, run.seed, once=True)
    momentum, lr = torch.zeros_like(w), LR
    per_epoch = len(data.train_y) // (WORKERS * batch)
    steps, losses, begun = run.epochs * per_epoch, [], time.process_time()
    for epoch in range(run.epochs):
        count = len(data.train_y)
        ranks = [tasks.batches(count, batch, rank, WORKERS, run.seed, epoch) for rank in range(WORKERS)]
        for chosen in zip(*ranks, strict=True):
            now = LR * (1 - (1 - END) * world.steps / steps)
            world.rescale(lr / now)
            lr, picked = now, torch.stack(chosen)
            grads, loss = gradients(net, w.expand(WORKERS, -1), data.train_x[picked], data.train_y[picked])
            momentum.mul_(MOMENTUM).add_(world.step(grads))
            w = w - lr * momentum
            losses.append(loss)
    return {
        "steps": steps,
        "accuracy": accuracy(net, w.unsqueeze(0), data.test_x, data.test_y),
        "loss": sum(losses[-per_epoch:]) / per_epoch,
        "bits_per_element": world.message_bits,
        "ratio": 32 / world.message_bits,
        "seconds": time.process_time() - begun,
    }


@lru_cache(maxsize=2)
def images(task: str, folder: Path | None) -> tasks.Data:
    """The task's images."""
    chosen = tasks.get(task)
    return chosen.load(chosen.locate(folder))
