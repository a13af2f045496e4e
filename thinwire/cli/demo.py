"""`thinwire demo`: train a real task with real processes under several methods, and show what each costs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.output import errors, keep, reserve, show
from thinwire.cli.progress import train_local
from thinwire.lab import records, tasks
from thinwire.lab.report import Run, page
from thinwire.lab.train import Job, without_curves

METHODS = (
    *("sgd", "bf16", "int8", "qsgd:bits=4", "terngrad", "ef-signsgd:block=64", "majority-vote"),
    *("ecq-sgd", "dgc:ratio=0.01", "deepsqueeze", "local-sgd"),
)
COLUMNS = {
    "method": "",
    "accuracy": ".1%",
    "bytes_sent": ",",
    "ratio": ".1f",
    "bits_per_element": ".2f",
    "seconds": ".1f",
    "loss": ".4f",
    "replicas_equal": "",
}


def demo(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Methods, with or without --methods.")] = None,
    task: Annotated[str, typer.Option(help=f"What to train: {' or '.join(tasks.TASKS)}.")] = "digits",
    data: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST's four .gz files.")] = None,
    workers: Annotated[int, typer.Option(help="Processes on this machine.")] = 4,
    methods: Annotated[
        list[str] | None, typer.Option(help="Method ids, one or more; see `thinwire methods`.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default: the task's).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model, the data's order and the noise.")] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the HTML page.")] = Path("demo.html"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, with the curves.")] = False,
    save: Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file.")] = None,
) -> None:
    """Train under several methods in real processes: accuracy, bytes, time, and an HTML page with the curves."""
    chosen = list(dict.fromkeys([*(methods or ()), *(ids or ())])) or list(METHODS)
    jobs = [Job(task, method, seed, epochs, data).located() for method in chosen]
    reserve(out, save)
    rows = train_local(jobs, chosen, workers)
    facts = {**records.environment(), "command": _command(jobs[0], chosen, workers, rows[0]["epochs"], data)}
    out.write_text(page([Run("thinwire demo", {"rows": rows}, [facts])]))
    errors.print(f"the curves are in {out}", soft_wrap=True)
    plain = [without_curves(row) for row in rows]
    keep(save, plain)
    show(
        rows if as_json else plain,
        as_json=as_json,
        title=(
            f"{task}, {workers} workers, {rows[0]['epochs']} epochs. bytes_sent: of one worker. "
            "ratio: bytes of a float32 ring all-reduce in every step / bytes_sent."
        ),
        columns=COLUMNS,
    )


def _command(job: Job, ids: list[str], workers: int, epochs: int, data: Path | None) -> str:
    """The command that does the same again, with nothing left to defaults."""
    words = ["thinwire", "demo", "--task", job.task, "--workers", workers, "--epochs", epochs, "--seed", job.seed]
    words += ["--data", data] if data else []
    return shlex.join(map(str, [*words, "--methods", *ids]))
