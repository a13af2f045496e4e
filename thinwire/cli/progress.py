"""Bars on standard error while ranks train: one per run, with its loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from thinwire.cli.output import errors, warn_of_few_rounds
from thinwire.lab import tasks, train
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network
from thinwire.lab.records import Row
from thinwire.lab.train import Job

TIMEOUT = 3600.0  # seconds for one run


@contextmanager
def bars(names: Sequence[str]) -> Iterator[Say]:
    """A bar for each name, moved by what rank 0 of `thinwire.lab.train` says."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors) as progress:
        ids = [progress.add_task(name, start=False, total=None, loss="-") for name in names]

        def hear(news: train.Progress) -> None:
            progress.start_task(ids[news.job])  # does nothing when it runs already
            progress.update(ids[news.job], completed=news.step, total=news.steps, loss=f"{news.loss:.4f}")

        yield hear


def train_local(jobs: Sequence[Job], names: Sequence[str], workers: int, hosts: Network | None = None) -> list[Row]:
    """Start `workers` processes once, on `hosts` if given, run all jobs in them, and return the records of rank 0."""
    for job in jobs:
        tasks.get(job.task).check_workers(workers)
        warn_of_few_rounds(job.method, job.steps(workers))
    timeout = TIMEOUT * len(jobs)
    with bars(names) as hear:
        rows: list[Row] = launch(train.train_all, workers, jobs, timeout=timeout, hear=hear, hosts=hosts)[0]
    return rows
