"""`thinwire bench accuracy` and `eta`: where training under a method arrives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.options import Json, Save
from thinwire.cli.output import collect, keep, reserve, show
from thinwire.cli.progress import train_local
from thinwire.lab import accuracy, bench_eta, tasks

ETA = {
    "graph": "",
    "ranks": "",
    "method": "",
    "compressor": "",
    "eta": ".2f",
    **{
        f"{name}{judge}": digits
        for judge in bench_eta.JUDGES
        for name, digits in (("error", ".4f"), ("best_eta", ".2f"), ("best_error", ".4f"), ("times", ".2f"))
    },
}
ACCURACY = {
    "method": "",
    "seeds": "d",
    "accuracy": ".2%",
    "lowest": ".2%",
    "highest": ".2%",
    "points": "+.2f",
    "unsure": ".2f",
}


def eta(
    lr: Annotated[float, typer.Option(help="Of every rank's gradient steps.")] = 0.05,
    steps: Annotated[int, typer.Option(help="Of a run.")] = 160,
    as_json: Json = False,
    save: Save = None,
) -> None:
    """The eta that DeepSqueeze and CHOCO-SGD choose beside a grid of etas, on quadratics."""
    if not 0 < lr < math.inf or steps < 5:
        raise ValueError("lr is positive and steps are 5 or more; write --lr 0.05 --steps 160")
    reserve(save)
    rows = collect(bench_eta.rows(lr, steps), "gossiping")
    keep(save, rows)
    title = (
        "error: distance of the mean model to the optimum over its length; error_ranks: that of the ranks' own "
        "models; times: of the best eta of the grid."
    )
    show(bench_eta.summary(rows), as_json=as_json, title=title, columns=ETA)


def bench_accuracy(
    task: Annotated[str, typer.Option(help=f"What to train: {' or '.join(tasks.TASKS)}.")] = "digits",
    seeds: Annotated[int, typer.Option(help="Runs of each method, with seeds 0, 1, ...")] = 3,
    method: Annotated[list[str] | None, typer.Option(help="Method id; may be repeated; sgd always runs.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default: the task's).")] = None,
    workers: Annotated[int, typer.Option(help="Processes on this machine.")] = 4,
    data: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST's four .gz files.")] = None,
    as_json: Json = False,
    save: Save = None,
) -> None:
    """Train with several seeds under each method: accuracy beside that of float32 at equal epochs."""
    jobs = accuracy.jobs(task, method or accuracy.METHODS, seeds, epochs, data)
    reserve(save)
    records = train_local(jobs, [f"{job.method} seed {job.seed}" for job in jobs], workers)
    rows = accuracy.rows(records)
    title = (
        f"{task}, {workers} workers, {rows[0]['epochs']} epochs; points: percentage points of accuracy above sgd; "
        "unsure: half their 95% interval, from the number of test images; points within it are none."
    )
    keep(save, rows)
    show(rows if as_json else accuracy.summary(records), as_json=as_json, title=title, columns=ACCURACY)
