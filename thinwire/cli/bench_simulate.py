"""`thinwire bench simulate`."""

from __future__ import annotations

from typing import Annotated

import typer

from thinwire.cli.options import Json, Save
from thinwire.cli.output import collect, reserve, say, show
from thinwire.lab import bench_simulate as lab

COLUMNS = {
    "method": "",
    "setting": "",
    "workers": ",",
    "steps": "d",
    "tensors": "d",
    "cpu_s": ".2f",
    "messages": ",",
    "ns_per_message": ",.2f",
    "us_per_worker_and_bucket": ".2f",
}
WORKERS = [8, 64, 512]


def bench_simulate(
    method: Annotated[list[str] | None, typer.Option(help="Method id; may be repeated.")] = None,
    workers: Annotated[list[int] | None, typer.Option(help="Workers; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
    setting: Annotated[list[str] | None, typer.Option(help=f"{', '.join(lab.SETTINGS)}; may be repeated.")] = None,
    tensors: Annotated[int, typer.Option(help="Tensors of the model, each a bucket of its own.")] = lab.TENSORS,
    as_json: Json = False,
    save: Save = None,
) -> None:
    """Measure what simulating by shapes costs, against the number of workers."""
    reserve(save)
    rows = collect(
        lab.measure(method or lab.METHODS, workers or WORKERS, steps, tensors, setting or [lab.USUAL]), "simulating"
    )
    title = "Processor time of simulating by shapes; computing scatters, so that no two steps are equal."
    show(rows, as_json=as_json, title=title, columns=COLUMNS, save=save)
    if not as_json:
        for row in rows:
            if row["stopped"]:
                say(f"{row['method']}, {row['setting']}: stopped after {row['steps']} steps: {row['stopped']}.")
