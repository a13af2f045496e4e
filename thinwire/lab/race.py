"""The race: seconds of training until a test accuracy is reached, over shaped links, one contestant at a time.

Contestants are DDP in float32, with its fp16 hook and with its PowerSGD hook, and thinwire's methods. With one seed
all start from the same model and see the same batches in the same order; all use SGD with a constant rate. A
contestant first takes a few steps with a copy of the model on free links; then the uplinks get their rate and the
clock starts.

The clock runs while ranks train, in stretches of some steps that start at a barrier and end when the slowest rank
has ended. It stops during tests. A test takes the first images or windows of the test set, divided among ranks,
each with its own model (they differ where a method gossips). The race ends when the mean of the last three tests
reaches the target. Bytes are those that the busiest host put on its wire while the clock ran, including headers.

"fast network" is what an infinitely fast one would allow: bulk-synchronous SGD whose gradients are averaged on free
links while the clock stands. Its time is that of computing alone.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.core.rates import bits_per_second
from thinwire.lab import race_courses, tasks, torchft_rival
from thinwire.lab.bench_hosts import FREE, PATIENCE, WARM, over_ranks, reshape
from thinwire.lab.launch import Say
from thinwire.lab.measure import accuracy, mean
from thinwire.lab.net.shaping import transmitted
from thinwire.lab.points import Points
from thinwire.lab.race_courses import Course
from thinwire.lab.race_steps import FAST, STEPS, step_of
from thinwire.lab.records import Row, quantiles
from thinwire.lab.rivals import RIVALS
from thinwire.lab.step_sizes import Step, optimizer_of
from thinwire.lab.tasks import Data
from thinwire.lab.torchft_rival import PREFIX

METHODS = (
    "qsgd:bits=4",
    "ecq-sgd",
    "ef-signsgd:block=64",
    "dgc:ratio=0.01",
    "deepsqueeze",
)
OUTER = (
    "torchft mean-10",
    "torchft diloco-10",
    "local-sgd:every=10",
    "sparse-loco:every=5",
    "qsparse-local-sgd:every=5,ratio=0.02",
    "qsparse-local-sgd:every=5,ratio=0.01",
    "qsparse-local-sgd:every=10,ratio=0.02",
)
"""Contestants with local steps, with periods that did well on the digits; others race by name."""
NAMES = (FAST, *RIVALS, *METHODS)
TESTS = 3  # whose mean has to reach the target


@dataclass(frozen=True)
class Run:
    """One contestant with one seed; without `rate` links stay as they are, and their bytes are not counted."""

    task: str
    method: str
    seed: int
    step: Step
    target: float
    most: int
    rate: str | None
    data: Path | None = None


@dataclass(frozen=True)
class News:
    """What rank 0 reports after each test."""

    run: int
    steps: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class Ended:
    """What rank 0 reports after each run."""

    row: Row


@dataclass
class Track(Points):
    """One point per test, with the accuracy."""

    accuracy: list[float] = field(default_factory=list)

    def mark(self, steps: int, seconds: float, sent: float, loss: float, right: float) -> None:
        """Add a stretch of `steps` that took `seconds`, after which so much was `right`."""
        self.add(steps, seconds, sent, loss)
        self.accuracy.append(right)

    @property
    def smooth(self) -> float:
        """The mean of the last tests; 0 before there are enough."""
        last = self.accuracy[-TESTS:]
        return sum(last) / TESTS if len(last) == TESTS else 0.0

    @property
    def lost(self) -> bool:
        """Whether the loss is no longer a number."""
        return bool(self.loss) and not math.isfinite(self.loss[-1])


def contestants(task: str) -> list[str]:
    """Those that race where none is asked for: of those with local steps, whose step size is recorded."""
    known, has_torchft = STEPS.get(task, {}), torchft_rival.installed()
    return [*NAMES, *(name for name in OUTER if name in known and (has_torchft or PREFIX not in name))]


def runs(
    task: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    rate: str | None,
    *,
    lrs: Sequence[float] | None = None,
    target: float | None = None,
    most: int | None = None,
    data: Path | None = None,
) -> list[Run]:
    """Every contestant with every seed, seed by seed, and with each of `lrs` or, without them, the recorded rate.

    Without a rate this is the grid, and runs end after half as many steps.
    """
    course, where = race_courses.get(task), tasks.get(task).locate(data)
    longest = course.most if rate is not None else course.most // 2
    goal, steps = course.target if target is None else target, longest if most is None else most
    if not 0 < goal < 1:
        raise ValueError(f"target={goal} is not an accuracy between 0 and 1; write --target {course.target}")
    if steps < TESTS * course.every:
        raise ValueError(
            f"{steps} steps are too few for {TESTS} tests, one every {course.every} steps; write --steps {longest}"
        )
    if not seeds or min(seeds) < 0:
        raise ValueError("a race needs seeds from 0 up; write --seeds 3, or --seed 0 --seed 1")
    for name in methods:
        if name not in (FAST, *RIVALS) and not torchft_rival.is_one(name):
            tw.method(name)
    made = []
    for seed in seeds:
        for name in methods:
            for lr in lrs or (None,):
                made.append(Run(task, name, seed, step_of(task, name, lr), goal, steps, rate, where))
    return made


def check(task: str, hosts: int, rate: str) -> None:
    """Raise a ValueError where the task cannot be shared, or a float32 step would outlast gloo's timeout."""
    course, known = race_courses.get(task), tasks.get(task)
    if not 2 <= hosts <= known.images // course.batch:
        raise ValueError(f"hosts={hosts}: 2 to {known.images // course.batch} can share {task}; write --hosts 4")
    slowest = 2 * (hosts - 1) / hosts * 32 * course.params / bits_per_second(rate)
    if slowest > PATIENCE:
        raise ValueError(f"at {rate} a float32 step would take {slowest:.0f} s; write --rate 100mbit")


def race(say: Say, every: Sequence[Run]) -> list[Row]:
    """One row per run, with its curves; this runs on every rank, and the rows of rank 0 count."""
    rows, here, data = [], None, None
    for number, run in enumerate(every):
        if data is None or here != (run.task, run.data):
            here, data = (run.task, run.data), tasks.get(run.task).load(run.data)
        rows.append(_run(say, number, run, data))
        if dist.get_rank() == 0:
            say(Ended(rows[-1]))
        gc.collect()  # DDP is part of a cycle, and as large as the model
    return rows


def _run(say: Say, number: int, run: Run, data: Data) -> Row:
    course = race_courses.get(run.task)
    torch.manual_seed(run.seed)
    net = course.model()
    if run.rate is not None:
        reshape(FREE)
    with _entered(run, copy.deepcopy(net)) as (model, optimizer):
        for chosen in islice(_batches(run, course, data), WARM):
            _step(model, optimizer, data, chosen)
    gc.collect()
    with _entered(run, net) as (model, optimizer):
        if run.rate is not None and run.method != FAST:
            reshape(run.rate)
        track, times, stream = Track(), [], _batches(run, course, data)
        while (done := int(track.step[-1]) if track.step else 0) < run.most and track.smooth < run.target:
            some = list(islice(stream, min(course.every, run.most - done)))
            took, sent, loss = _stretch(run, model, optimizer, data, some)
            right = accuracy(net, data.test_x[: course.tested], data.test_y[: course.tested])
            track.mark(len(some), took, sent, loss, right)
            times.append(took / len(some))
            if dist.get_rank() == 0:
                say(News(number, int(track.step[-1]), track.seconds[-1], right))
            if track.lost:
                break
    return _row(run, dist.get_world_size(), course, track, times)


def lost(run: Run, hosts: int) -> Row:
    """The row of a run that ended because its model was no longer finite."""
    track = Track()
    track.mark(0, 0.0, 0.0, math.nan, 0.0)
    return _row(run, hosts, race_courses.get(run.task), track, [math.nan])


def _row(run: Run, hosts: int, course: Course, track: Track, times: Sequence[float]) -> Row:
    low, middle, high = quantiles(list(times))
    return {
        "task": run.task,
        "method": run.method,
        "seed": run.seed,
        "hosts": hosts,
        "rate": run.rate,
        "params": course.params,
        "batch": course.batch,
        "lr": run.step.lr,
        "momentum": run.step.momentum,
        "target": run.target,
        "reached": track.smooth >= run.target,
        "steps": int(track.step[-1]),
        "seconds": track.seconds[-1],
        "bytes_sent": None if run.rate is None else int(track.bytes_sent[-1]),
        "accuracy": track.smooth,
        "loss": track.loss[-1],
        "step_ms_p20": 1e3 * low,
        "step_ms_p50": 1e3 * middle,
        "step_ms_p80": 1e3 * high,
        "curves": {name: list(values) for name, values in vars(track).items()},
    }


@contextmanager
def _entered(run: Run, net: nn.Module) -> Iterator[tuple[nn.Module, Optimizer]]:
    """The model to call, and the optimizer that steps it."""
    if run.method in (FAST, *RIVALS):
        wrap = RIVALS.get(run.method, _as_it_is)
        yield wrap(net), SGD(net.parameters(), lr=run.step.lr, momentum=run.step.momentum)
        return
    if torchft_rival.is_one(run.method):
        optimizer: Optimizer = SGD(net.parameters(), lr=run.step.lr, momentum=run.step.momentum)
        with torchft_rival.entered(run.method, net, optimizer):
            yield net, optimizer
        return
    method = tw.method(run.method)
    optimizer = optimizer_of(method, run.step, net.parameters())
    with tw.attach(net, optimizer, method, seed=run.seed):
        yield net, optimizer


def _as_it_is(net: nn.Module) -> nn.Module:
    return net


def _batches(run: Run, course: Course, data: Data) -> Iterator[Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    for epoch in count():
        yield from tasks.batches(len(data.train_x), course.batch, rank, world, run.seed, epoch)


class _Watch:
    """Seconds since it was made, less those while it stood."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @contextmanager
    def standing(self) -> Iterator[None]:
        """The clock stands in the block."""
        stopped = time.perf_counter()
        yield
        self._start += time.perf_counter() - stopped


def _nothing() -> None:
    """Between backward and the step, where an exchange is part of either."""


def _averaged(model: nn.Module, watch: _Watch) -> Callable[[], None]:
    """Average the gradients while the clock stands; every rank then goes on at the same time."""

    def average() -> None:
        with watch.standing():
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            total = torch.cat([grad.flatten() for grad in grads])
            dist.all_reduce(total)
            for grad, part in zip(grads, total.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(part.view(grad.shape) / dist.get_world_size())

    return average


def _step(
    model: nn.Module,
    optimizer: Optimizer,
    data: Data,
    chosen: Tensor,
    between: Callable[[], None] = _nothing,
) -> Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data.train_x[chosen]), data.train_y[chosen])
    torch.autograd.backward(loss)
    between()
    optimizer.step()
    return loss.detach()


def _stretch(
    run: Run, model: nn.Module, optimizer: Optimizer, data: Data, some: Sequence[Tensor]
) -> tuple[float, float, float]:
    """Train on these batches; returns seconds of the slowest rank, bytes of the busiest, and the mean loss of all."""
    before = 0 if run.rate is None else transmitted()
    dist.barrier()
    watch = _Watch()
    between = _averaged(model, watch) if run.method == FAST else _nothing
    losses = [_step(model, optimizer, data, chosen, between) for chosen in some]
    took = watch.seconds
    dist.barrier()  # now every host has received, so that every byte has been counted
    after = before if run.rate is None or run.method == FAST else transmitted()
    slowest, busiest = over_ranks([took, after - before], dist.ReduceOp.MAX)
    (loss,) = mean([float(torch.stack(losses).mean())])
    return slowest, busiest, loss
