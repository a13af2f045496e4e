"""One run: eight workers on a graph, each with its own images, its own residual net and its own momentum.

    m_i = momentum m_i + g_i(x_i),    the local update is -lr m_i

and the method mixes the models. All parameters of a worker travel in one message and are compressed, as in the
CHOCO-SGD authors' experiments; `attach` would leave vectors uncompressed. The rate rises over the first 5% of the
steps and is divided by 10 after a half and after three quarters, as it is there.

Accuracy of the mean model is that on all test images. Accuracy of the workers is one number too: the test images are
dealt into eighths, each worker's own model names one eighth, and what is right is counted over all of them.

A lost run stops: one in which a model is huge or not finite, or the loss over the epoch at half time is no better
than that of guessing.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.exchange.gossip import Gossip
from thinwire.exchange.mix import Mix
from thinwire.lab import tasks
from thinwire.lab.records import Row
from thinwire.lab.residual import CLASSES, Residual
from thinwire.lab.swarm import Swarm

WORKERS = 8
MOMENTUM = 0.9
BATCH = {"digits": 8, "fashion": 16}
SPLITS = ("iid", "label")
HUGE = 1e6  # the size of one weight at which a run stops
FINITE = 1e15  # the size of one weight up to which it is still tested
CHANCE = math.log(CLASSES)
GUESSED = 1.5 / CLASSES  # accuracy that is no better than guessing
FIELDS = (
    *("lr", "seed", "epochs", "batch", "workers", "momentum", "eta", "steps", "planned", "bits_per_element", "bytes"),
    *("accuracy_mean_model", "accuracy_workers", "consensus_distance", "loss", "diverged", "seconds"),
)
CHUNK = 512  # images tested at a time
SEEN = 4096  # training images on which the mean model's loss is taken, at most


@dataclass(frozen=True)
class Run:
    """What decides the numbers of a run."""

    task: str
    split: str
    method: str
    lr: float
    seed: int
    epochs: int
    data: Path | None = None


def train(run: Run) -> Row:
    """Train and test: the values of FIELDS, and `losses` of the mean model after every epoch.

    Where eta follows the step, "eta" is that of the mean ratio of steps to models, for messages that scatter no more
    than a Gaussian: it was that or less.
    """
    data = _data(run.task, run.data)
    net = Residual(halve=run.task == "fashion")
    exchange = tw.method(run.method).exchange
    assert isinstance(exchange, Gossip)
    swarm = Swarm(exchange, WORKERS, net.start(run.seed), net.layout, run.seed)
    begun = time.perf_counter()
    ratio, losses, lost = _train(run, net, swarm, data)
    finite = bool(swarm.models.abs().max() < FINITE)
    mean = swarm.mean.unsqueeze(0)
    right = accuracy(net, mean, data.test_x, data.test_y) if finite else None
    return {
        "lr": run.lr,
        "seed": run.seed,
        "epochs": run.epochs,
        "batch": BATCH[run.task],
        "workers": WORKERS,
        "momentum": MOMENTUM,
        "eta": exchange.step(WORKERS, ratio) if isinstance(exchange, Mix) else None,
        "steps": swarm.steps,
        "planned": run.epochs * (len(data.train_y) // WORKERS // BATCH[run.task]),
        "bits_per_element": 8 * swarm.bytes / max(1, swarm.messages) / net.layout.numel,
        "bytes": swarm.bytes,
        "accuracy_mean_model": right,
        "accuracy_workers": accuracy(net, swarm.models, data.test_x, data.test_y) if finite else None,
        "consensus_distance": swarm.distance if finite else None,
        "loss": _loss(net, mean, data.train_x[:SEEN], data.train_y[:SEEN]) if finite else None,
        "diverged": lost or right is None or right < GUESSED,
        "seconds": time.perf_counter() - begun,
        "losses": losses,
    }


def shards(labels: Tensor, split: str, seed: int) -> Tensor:
    """The images of each worker, (workers, images): at random, or sorted by label."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if split == "label":
        order = order[labels[order].argsort(stable=True)]
    each = len(labels) // WORKERS
    return order[: WORKERS * each].view(WORKERS, each)


def rate(run: Run, done: float) -> float:
    """The learning rate after the fraction `done` of the run, 0 to 1."""
    return run.lr * min(1.0, done / 0.05) * (1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01)


def _train(run: Run, net: Residual, swarm: Swarm, data: tasks.Data) -> tuple[float, list[float], bool]:
    """The mean ratio of steps to models, the losses of the mean model, and whether the run was lost."""
    mine, batch = shards(data.train_y, run.split, run.seed), BATCH[run.task]
    per_epoch = mine.shape[1] // batch
    momenta = torch.zeros_like(swarm.models)
    g = torch.Generator().manual_seed(run.seed)
    losses: list[float] = []
    ratio = 0.0
    for epoch in range(run.epochs):
        order = torch.stack([torch.randperm(mine.shape[1], generator=g) for _ in range(WORKERS)])
        total = 0.0
        for step in range(per_epoch):
            chosen = mine.gather(1, order[:, step * batch : (step + 1) * batch])
            grads, loss = gradients(net, swarm.models, data.train_x[chosen], data.train_y[chosen])
            momenta.mul_(MOMENTUM).add_(grads)
            if not (swarm.models.abs().max() < HUGE and torch.isfinite(momenta).all()):
                return ratio / max(1, swarm.steps), losses, True
            updates = -rate(run, (epoch + (step + 1) / per_epoch) / run.epochs) * momenta
            ratio += float((updates.norm(dim=1) / swarm.models.norm(dim=1)).mean())
            swarm.step(updates)
            total += loss
        losses.append(_loss(net, swarm.mean.unsqueeze(0), data.train_x[:SEEN], data.train_y[:SEEN]))
        if 2 * epoch <= run.epochs < 2 * (epoch + 1) and total / per_epoch > CHANCE:
            return ratio / swarm.steps, losses, True
    return ratio / max(1, swarm.steps), losses, False


def gradients(net: Residual, models: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """The gradient of each worker (n, d), and the mean loss."""
    x = models.detach().requires_grad_()
    out = net(x, images)
    loss = nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten()) * len(
        models
    )  # the sum of the workers' means
    return torch.autograd.grad(loss, x)[0], loss.item() / len(models)


@torch.no_grad()
def accuracy(net: Residual, models: Tensor, images: Tensor, labels: Tensor) -> float:
    """The share of images that are classified correctly; each model tests its part."""
    n = len(models)
    each = len(labels) // n
    x, y = (t[: n * each].unflatten(0, (n, each)) for t in (images, labels))
    parts = [net(models, some) for some in x.split(CHUNK // n, 1)]
    return float((torch.cat(parts, 1).argmax(2) == y).float().mean())


@torch.no_grad()
def _loss(net: Residual, models: Tensor, images: Tensor, labels: Tensor) -> float:
    out = torch.cat([net(models, some.unsqueeze(0)) for some in images.split(CHUNK)], 1)
    return float(nn.functional.cross_entropy(out[0], labels))


@lru_cache(maxsize=2)
def _data(task: str, folder: Path | None) -> tasks.Data:
    chosen = tasks.get(task)
    return chosen.load(chosen.locate(folder))
