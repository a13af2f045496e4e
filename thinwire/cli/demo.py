"""`thinwire demo`: train a real task with real processes over a slow link, and show what each method costs there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.output import errors, keep, reserve, say
from thinwire.cli.progress import train_local
from thinwire.cli.trained import show_trained
from thinwire.core.rates import bits_per_second
from thinwire.lab import demo as contest
from thinwire.lab import records, tasks
from thinwire.lab.net import Network
from thinwire.lab.net.tools import check as check_lab
from thinwire.lab.records import Row
from thinwire.lab.report import Run, page
from thinwire.lab.step_sizes import OPTIMIZERS
from thinwire.lab.train import Job, without_curves


def demo(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Methods, with or without --methods.")] = None,
    task: Annotated[str, typer.Option(help=f"What to train: {' or '.join(tasks.TASKS)}.")] = "digits",
    data: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST's four .gz files.")] = None,
    workers: Annotated[int, typer.Option(help="Processes on this machine.")] = 4,
    methods: Annotated[
        list[str] | None, typer.Option(help="Method ids, one or more; see `thinwire methods`.")
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(OPTIMIZERS)}; may be repeated (default: SGD and AdamW, or what --methods state)."
        ),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Step size for all (default: that of optimizer and task).")] = None,
    rate: Annotated[str, typer.Option(help="Rate of every worker's uplink.")] = contest.RATE,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Forecast seconds, also where the link can be made.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help=f"Passes over the data (default: {contest.EPOCHS} on digits).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model, the data's order and the noise.")] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the HTML page.")] = Path("demo.html"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, with the curves.")] = False,
    save: Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file.")] = None,
) -> None:
    """Train under several methods over a slow link: accuracy, bytes, seconds, and an HTML page with the curves.

    As root, with iproute2, the link is a real one between network namespaces; otherwise seconds are a forecast.
    """
    bits_per_second(rate)
    chosen = list(dict.fromkeys([*(methods or ()), *(ids or ())]))
    optimizers = list(dict.fromkeys(optimizer or ()))
    jobs = contest.jobs(task, chosen, optimizers, lr=lr, seed=seed, epochs=epochs, data=data)
    tasks.get(task).check_workers(workers)
    reserve(out, save)
    rows, why = _trained(jobs, workers, rate, forecast=forecast)
    facts = {**records.environment(), "command": _command(jobs, workers, rows, rate, forecast=bool(why))}
    out.write_text(page([Run("thinwire demo", {"rows": rows}, [facts])]), encoding="utf-8")
    errors.print(f"the curves are in {out}", soft_wrap=True)
    keep(save, [without_curves(row) for row in rows])
    seconds = f"FORECAST by the virtual clock ({why})" if why else "measured over network namespaces with that uplink"
    title = f"{task}, {workers} workers, {rows[0]['epochs']} epochs, uplinks of {rate}. seconds: {seconds}."
    show_trained(rows, [job.name for job in jobs], title, as_json=as_json)
    if not as_json:
        for sentence in contest.verdict(rows):
            say(sentence)


def _trained(jobs: Sequence[Job], workers: int, rate: str, *, forecast: bool) -> tuple[list[Row], str]:
    """The rows, and why their seconds are a forecast; "" where they were measured."""
    names = [job.name for job in jobs]
    with ExitStack() as stack:
        why = "--forecast" if forecast else ""
        hosts = None
        if not why:
            try:
                check_lab()
                hosts = stack.enter_context(Network(workers, rate))
            except (OSError, ValueError) as error:
                why = _reason(error)
        if hosts is not None:
            linked = [replace(job, rate=rate) for job in jobs]
            return contest.compared(train_local(linked, names, workers, hosts)), ""
    errors.print(f"seconds will be a forecast: {why}", soft_wrap=True)
    return contest.compared(contest.forecast(train_local(jobs, names, workers), rate)), why


def _reason(error: Exception) -> str:
    """In a few words."""
    if isinstance(error, PermissionError):
        return "a slow link between processes needs root"
    if isinstance(error, FileNotFoundError):
        return "a slow link between processes needs iproute2"
    return str(error).partition("; write")[0]


def _command(jobs: Sequence[Job], workers: int, rows: Sequence[Row], rate: str, *, forecast: bool) -> str:
    """The command that does the same again, with nothing left to defaults but the pairs of the contestants."""
    job = jobs[0]
    words = ["thinwire", "demo", "--task", job.task, "--workers", workers, "--epochs", rows[0]["epochs"]]
    words += ["--seed", job.seed, "--rate", rate, *(["--data", job.data] if job.data else [])]
    words += [*(["--lr", job.lr] if job.lr is not None else []), *(["--forecast"] if forecast else [])]
    optimizers = dict.fromkeys(job.optimizer for job in jobs if job.optimizer is not None)
    methods = dict.fromkeys(job.method for job in jobs)
    for name in optimizers if len(jobs) == len(methods) * max(1, len(optimizers)) else ():
        words += ["--optimizer", name]
    if len(jobs) == len(methods) * max(1, len(optimizers)):
        words += ["--methods", *methods]
    return shlex.join(map(str, words))
