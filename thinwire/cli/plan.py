"""`thinwire plan`: does compression pay on a link; and `thinwire bench plan`: is the planner right."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import torch.distributed as dist
import typer

import thinwire as tw
from thinwire.cli.options import Json, Save
from thinwire.cli.output import errors, keep, line, reserve, say, show
from thinwire.lab import bench_plan, plan_models, plan_verify
from thinwire.lab.bench_hosts import FREE
from thinwire.lab.launch import launch
from thinwire.lab.net import Network
from thinwire.lab.records import environment
from thinwire.planning.outlook import BASE, Outlook, pays
from thinwire.planning.picture import check_plot
from thinwire.planning.planner import FORECAST, METHODS
from thinwire.planning.trial import MOST

CELLS = {
    "method": "",
    "hosts": "d",
    "rate": "",
    "predicted_ms": ".1f",
    "step_ms": ".1f",
    "step_ms_p20": ".1f",
    "step_ms_p80": ".1f",
    "error": "+.1%",
    "binds": "",
    "steps": "d",
}
ROWS = {
    "method": "",
    "step_ms_p20": ",.1f",
    "step_ms": ",.1f",
    "step_ms_p80": ",.1f",
    "binds": "",
    "pays_below": "",
    "sent_mb": ",.2f",
    "kept_mb": ",.1f",
    "codec_ms": ",.1f",
    "speedup": ".2f",
}
LATENCY = "100us"
VERIFIED = {
    "method": "",
    "rate": "",
    "latency": "",
    "predicted_ms": ".1f",
    "step_ms": ".1f",
    "error": "+.1%",
}


def plan(
    model: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(plan_models.BUILT)} (built and timed), shapes: resnet50, gpt2, ..., or a function of "
            f"yours that makes model and batch: {plan_models.OWN}"
        ),
    ] = "mlp",
    hosts: Annotated[
        int | None, typer.Option(help="Hosts, with one rank on each (default: 4, or the ranks of torchrun).")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Rate of every host's link (default: 1gbit; under torchrun it is measured).")
    ] = None,
    latency: Annotated[str, typer.Option(help="One way, with --rate.")] = LATENCY,
    method: Annotated[list[str] | None, typer.Option(help="Method id; may be repeated.")] = None,
    params: Annotated[int, typer.Option(help="Approximate size of an mlp.")] = plan_models.PARAMS,
    batch: Annotated[int | None, typer.Option(help="Samples per host and step, of a model that is built.")] = None,
    computing: Annotated[
        str | None, typer.Option(help="How long a step of a model that is given by its shapes computes: 300ms.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help=f"{' or '.join(plan_models.OPTIMIZERS)} (default: sgd); methods that do not suit are not taken."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda; of a model that is built.")] = "cpu",
    tries: Annotated[
        int, typer.Option(help="How many of the best take real steps to choose by, where the link is measured.")
    ] = MOST,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Run the best two and DDP for real, on such links in a network lab; needs root."
        ),
    ] = False,
    budget: Annotated[
        float, typer.Option(help="Seconds of timed steps of each, with --verify.")
    ] = plan_verify.BUDGET,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Step time against rate: a .png, .svg or .pdf file.")] = None,
) -> None:
    """Forecast a step of training under each method, DDP and its hooks; say what binds it and what to take.

    Computing and codecs are measured on this machine; hosts and their link are as you say.
    """
    together = ranks_here()
    if together and rate is None and latency != LATENCY:
        raise ValueError(f"the link is measured under torchrun; write --rate 1gbit --latency {latency}")
    known = "1gbit" if rate is None and not together else rate
    network = None if known is None else tw.Network(known, latency)
    hosts = hosts if hosts is not None or together else 4
    if hosts is not None and hosts < 2:
        raise ValueError(f"hosts={hosts}: there is nothing to plan below 2; write --hosts 4")
    wanted = plan_models.Wanted(model, params, batch, device, computing, optimizer)
    wanted.check()
    methods = list(dict.fromkeys(method or METHODS))
    for text in methods:
        tw.method(text)
    if tries < 0:
        raise ValueError(f"--tries {tries}: write --tries {MOST}, or --tries 0 for none")
    if not 0 < budget < math.inf:
        raise ValueError("steps take time; write --verify --budget 4")
    if verify:
        plan_verify.check(wanted, together=together)
    if plot is not None:
        check_plot(plot)
        reserve(plot)
    with group(together) as first, line("measuring") as say_so:
        show_so = partial(_hear, first=first, say_so=say_so)
        found = plan_models.outlook(wanted, network, hosts, methods, show_so, tries)
    if not first:
        return
    if plot is not None:
        found.plot(plot)
        errors.print(f"plot written to {plot}", soft_wrap=True)
    if not verify:
        sys.stdout.write(found.json(environment=environment()) + "\n") if as_json else _print(found)
        return
    if not as_json:
        _print(found)
    with line() as say_so:
        hear = lambda news: say_so(f"{news[0]}: {news[1]}")  # noqa: E731
        rows, note = plan_verify.verify(found, wanted, known or "1gbit", latency, hear, budget)
    if as_json:
        more = {"verified": rows, "verified_note": note}
        sys.stdout.write(found.json(environment=environment(), **more) + "\n")
        return
    title = f"Forecast for {found.hosts} hosts on this machine, which share its cores, and measured there."
    show(rows, as_json=False, title=title, columns=VERIFIED)
    if note:
        say(note)


def _hear(text: str, *, first: bool, say_so: Callable[[str], None]) -> None:
    """A forecast stays on the terminal as it comes; what is measured is shown while it is."""
    if FORECAST not in text:
        say_so(f"measuring: {text}")
    elif first:
        errors.print(text, soft_wrap=True)


def ranks_here() -> bool:
    """Whether torchrun has started several ranks of this command."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def group(together: bool) -> Iterator[bool]:
    """The process group of torchrun, if it started this; says whether this rank is to print."""
    if not together:
        yield True
        return
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank() == 0
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _print(found: Outlook) -> None:
    rows = [
        {
            **vars(row),
            "pays_below": "-" if row.method == BASE else pays(row.pays_below),
            "sent_mb": row.sent_bytes / 1e6,
            "kept_mb": row.memory_bytes / 1e6,
        }
        for row in found.rows
    ]
    columns = ROWS | {"tried_ms": ",.1f"} if found.tried else ROWS
    show(rows, as_json=False, title=found.title, columns=columns)
    for sentence in found.sentences:
        say(sentence)


def bench(
    hosts: Annotated[str, typer.Option(help="Numbers of hosts, with commas between them; needs root.")] = "2,4,8",
    rate: Annotated[str, typer.Option(help="Rates of every host's uplink, with commas.")] = "100mbit,1gbit,10gbit",
    method: Annotated[list[str] | None, typer.Option(help="Method id; may be repeated.")] = None,
    params: Annotated[int, typer.Option(help="Approximate size of the gradient.")] = bench_plan.PARAMS,
    batch: Annotated[int, typer.Option(help="Samples per host and step.")] = 1,
    budget: Annotated[float, typer.Option(help="Seconds of timed steps in one cell.")] = 2.0,
    device: Annotated[str, typer.Option(help="cpu, or cuda: all hosts on one GPU.")] = "cpu",
    as_json: Json = False,
    save: Save = None,
) -> None:
    """Forecast steps between shaped hosts, then take them: the error of every cell."""
    if not all(word.isdecimal() for word in hosts.split(",")):
        raise ValueError(f"--hosts {hosts}: between how many? write --hosts 2,4,8")
    counts = [int(word) for word in hosts.split(",")]
    methods = list(dict.fromkeys(method or bench_plan.METHODS))
    plan_models.check_device(device)
    job = bench_plan.Job(methods, params, rate.split(","), budget, batch, device=device)
    job.check(counts)
    reserve(save)
    rows = []
    with line() as say_so:
        for count in counts:
            with Network(count, FREE) as network:
                hear = lambda news, count=count: say_so(f"{count} hosts, {news[0]}: {news[1]}")  # noqa: E731
                gpu = device == "cuda"
                rows += launch(bench_plan.bench, count, job, timeout=3600.0, hear=hear, hosts=network, gpu=gpu)[0]
            keep(save, rows)
    told = bench_plan.summary(rows)
    title = (
        f"{told['cells']} cells: median error {told['median_error']:.1%}, worst {told['worst_error']:.1%}; "
        f"{told['recommended_near']} of {told['recommended']} recommendations within {bench_plan.NEAR:.0%} of the "
        f"fastest, the worst {told['recommended_loses']:.1%} slower ({told['forecast_near']} by forecasts alone, "
        f"{told['forecast_loses']:.1%}). Beside the cells, a step without communication took "
        f"{told['computing_from']:.2f} to {told['computing_to']:.2f} times as long as when it was measured."
    )
    show(rows, as_json=as_json, title=title, columns=CELLS)
