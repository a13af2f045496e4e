"""The race in real processes, one worker each, over shaped links.

A step computes its gradient, and before that sleeps for the rest of the time that it is to take: the workers of a lab
share the cores of one machine, and so none keeps another from computing. Tests are made when the run has ended, of
copies that were taken at every tick.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw
from thinwire.comm.control import gathered
from thinwire.lab.launch import Say
from thinwire.lab.records import Row
from thinwire.lab.stragglers import course
from thinwire.lab.stragglers.course import SECONDS, TICK, Run
from thinwire.lab.stragglers.ending import Ending
from thinwire.lab.stragglers.kinds import KINDS
from thinwire.lab.stragglers.measured import Measured
from thinwire.sim import Problem

WARM = 5  # steps before the clock runs


def race(say: Say, runs: Sequence[Run], folder: str) -> list[Row]:
    """One row per run; this runs on every rank, and the rows of rank 0 count. `folder` is empty, and of all ranks."""
    rows = []
    for number, run in enumerate(runs):
        board = dist.FileStore(str(Path(folder) / f"run{number}"), dist.get_world_size())
        rows.append(_run(run, board))
        if dist.get_rank() == 0:
            say(rows[-1])
        gc.collect()
    return rows


def _run(run: Run, board: dist.Store) -> Row:
    method, problem, rank = tw.method(run.method), course.problem(run), dist.get_rank()
    load, factors = os.getloadavg()[0], KINDS.parse(run.stragglers).of(run.workers)

    def told() -> int | None:
        return int(board.get("last")) if board.check(["last"]) else None

    ending = Ending(method, run.workers, lambda last: board.set("last", str(last)), told)
    gradient = _warmed(problem, method, run)
    net = problem.model()
    optimizer = problem.optimizer(net.parameters())
    measured, frames, held = Measured(run.target, run.limit, [[]]), list[Tensor](), course.flat(net)
    with tw.attach(net, optimizer, method, seed=run.seed) as wire:
        dist.barrier()
        start, steps, now = time.perf_counter(), 0, 0.0
        while not ending.over(rank, steps, now >= run.limit):
            ready = now + SECONDS * factors.factor(rank, steps, run.seed) - gradient
            time.sleep(max(0.0, start + ready - time.perf_counter()))
            _step(problem, net, optimizer, rank, steps)
            now, steps = time.perf_counter() - start, steps + 1
            frames += [held] * (measured.due(now) - len(frames))
            held = course.flat(net)
            measured.ends[0].append(now)
        stats = wire.stats()
    frames += [held] * (round(run.limit / TICK) - len(frames))
    _test(measured, problem, frames, averaged=course.averaged(method))
    measured.ends = gathered(measured.ends[0])
    return measured.row(run, "processes", stats, load)


def _warmed(problem: Problem, method: tw.Method, run: Run) -> float:
    """Take some steps with another model; returns what a gradient takes after a sleep, while all compute one."""
    net, rank, times = problem.model(), dist.get_rank(), []
    optimizer = problem.optimizer(net.parameters())
    for number in range(WARM):
        dist.barrier()
        time.sleep(SECONDS / 2)
        begun = time.perf_counter()
        torch.autograd.backward(problem.loss(net, rank, number))
        times.append(time.perf_counter() - begun)
    with tw.attach(net, optimizer, method, seed=run.seed):
        for number in range(WARM):
            _step(problem, net, optimizer, rank, number)
    return median(times)


def _step(problem: Problem, net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(problem.loss(net, rank, number))
    optimizer.step()


def _test(measured: Measured, problem: Problem, frames: Sequence[Tensor], *, averaged: bool) -> None:
    """Test the mean of all ranks' copies, or those of rank 0."""
    films = torch.stack(list(frames))
    if averaged:
        dist.all_reduce(films)
        films /= dist.get_world_size()
    tested = course.tester(problem)
    if dist.get_rank() == 0:
        for frame in films:
            measured.tested(tested(frame))
