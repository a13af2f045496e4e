"""`thinwire train`: one task under one method, in local processes or in those that torchrun started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch.distributed as dist
import typer

from thinwire.cli.output import warn_of_few_rounds
from thinwire.cli.progress import bars, train_local
from thinwire.cli.trained import show_trained
from thinwire.lab import tasks
from thinwire.lab.launch import Say
from thinwire.lab.records import Row
from thinwire.lab.step_sizes import OPTIMIZERS
from thinwire.lab.train import Job, train_all

WORKERS = 4


def train(
    task: Annotated[str, typer.Option(help=f"What to train: {' or '.join(tasks.TASKS)}.")] = "digits",
    method: Annotated[str, typer.Option(help="Method id; see `thinwire methods`.")] = "qsgd:bits=4",
    optimizer: Annotated[
        str | None, typer.Option(help=f"{', '.join(OPTIMIZERS)} (default: what the method states, mostly sgd).")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Step size (default: that of optimizer, method and task).")] = None,
    workers: Annotated[
        int | None, typer.Option(help=f"Processes on this machine (default: {WORKERS}, or torchrun's).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default: the task's).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model, the data's order and the noise.")] = 0,
    data: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST's four .gz files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, with the curves.")] = False,
) -> None:
    """Train one task under one method. Under torchrun it joins torchrun's group; only rank 0 prints."""
    joined = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    try:
        job = Job(task, method, seed, epochs, data, optimizer, lr).located()
        if joined and workers not in (None, int(os.environ["WORLD_SIZE"])):
            raise ValueError(f"torchrun started {os.environ['WORLD_SIZE']} ranks; leave --workers out")
    except (ValueError, TypeError, OSError):
        if joined and os.environ["RANK"] != "0":
            raise typer.Exit(2) from None  # rank 0 prints the error
        raise
    if joined and os.environ["RANK"] != "0":
        _join(job, lambda _: None)
        return
    if joined:
        warn_of_few_rounds(method, job.steps(int(os.environ["WORLD_SIZE"])))
        with bars([job.name]) as hear:
            row = _join(job, hear)
    else:
        row = train_local([job], [job.name], WORKERS if workers is None else workers)[0]
    title = f"{task}, {row['workers']} workers, {row['epochs']} epochs, step size {row['lr']:g}."
    show_trained([row], [job.name], title, as_json=as_json)


def _join(job: Job, say: Say) -> Row:
    """Train in torchrun's group."""
    dist.init_process_group("gloo")
    row = train_all(say, [job])[0]
    dist.barrier()  # gloo aborts now and then when one rank tears down while another still talks
    dist.destroy_process_group()
    return row
