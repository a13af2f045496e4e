"""`thinwire train`: one task under one method, in local processes or in those that torchrun started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch.distributed as dist
import typer

from thinwire.cli.demo import COLUMNS
from thinwire.cli.output import show
from thinwire.cli.progress import bars, train_local
from thinwire.lab import tasks
from thinwire.lab.launch import Say
from thinwire.lab.records import Row
from thinwire.lab.train import Job, train_all, without_curves

WORKERS = 4


def train(
    task: Annotated[str, typer.Option(help=f"What to train: {' or '.join(tasks.TASKS)}.")] = "digits",
    method: Annotated[str, typer.Option(help="Method id; see `thinwire methods`.")] = "qsgd:bits=4",
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
        job = Job(task, method, seed, epochs, data).located()
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
        with bars([method]) as hear:
            row = _join(job, hear)
    else:
        row = train_local([job], [method], WORKERS if workers is None else workers)[0]
    title = f"{task}, {row['workers']} workers, {row['epochs']} epochs. bytes_sent: of one worker."
    show([row if as_json else without_curves(row)], as_json=as_json, title=title, columns=COLUMNS)


def _join(job: Job, say: Say) -> Row:
    """Train in torchrun's group."""
    dist.init_process_group("gloo")
    row = train_all(say, [job])[0]
    dist.barrier()  # gloo aborts now and then when one rank tears down while another still talks
    dist.destroy_process_group()
    return row
