"""`thinwire bench step`: a training step under each method, on this machine or between hosts of a network lab."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

import thinwire as tw
from thinwire.cli.options import Json, Save
from thinwire.cli.output import line, reserve, show
from thinwire.core.rates import seconds
from thinwire.lab import bench_hosts, gpt2
from thinwire.lab import bench_step as lab
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network

STEP = {
    "method": "",
    "step_ms": ".1f",
    "step_ms_p20": ".1f",
    "step_ms_p80": ".1f",
    "ddp_ms": ".1f",
    "encode_ms": ".1f",
    "wire_ms": ".1f",
    "decode_ms": ".1f",
    "tx_bits_per_param": ".2f",
}
STEP_GPU = {
    **{name: form for name, form in STEP.items() if name not in ("encode_ms", "decode_ms")},
    "encode_gpu_ms": ".2f",
    "decode_gpu_ms": ".2f",
    "codec_share": ".1%",
    "alone_ms": ".1f",
}
HOSTS = {
    "method": "",
    "step_ms": ".1f",
    "step_ms_p20": ".1f",
    "step_ms_p80": ".1f",
    "tx_bits_per_param": ".2f",
    "wire_bound_ms": ".1f",
    "wire_share": ".2f",
    "speedup_over_ddp": ".2f",
    "cpu_ms": ".1f",
}


def bench_step(
    local: Annotated[bool, typer.Option("--local", help="Ranks on this machine, on its own links.")] = False,
    hosts: Annotated[int | None, typer.Option(help="Hosts of a network lab, one rank on each; needs root.")] = None,
    rate: Annotated[str, typer.Option(help="Rate of every host's uplink, with --hosts.")] = "1gbit",
    latency: Annotated[str | None, typer.Option(help="One way, with --hosts, if the kernel has netem.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda: all ranks on one GPU.")] = "cpu",
    workers: Annotated[
        int | None, typer.Option(help="Processes, with --local (default: 2; with --device cuda 4).")
    ] = None,
    params: Annotated[
        int | None,
        typer.Option(
            help=f"Approximate size of the gradient (default: 4194304; with --hosts or a GPU {bench_hosts.PARAMS})."
        ),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Method id; may be repeated.")] = None,
    repeats: Annotated[
        int | None,
        typer.Option(help="Turns of each method (default: 15 of 3 timed steps; with --hosts 3 of up to 10)."),
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds of timed steps per method, with --hosts.")] = 60.0,
    batch: Annotated[
        int | None,
        typer.Option(help="Vectors (on a GPU: texts) that every host computes on in a step, with --hosts."),
    ] = None,
    sequence: Annotated[int, typer.Option(help="Words of a text, with --hosts on a GPU.")] = bench_hosts.SEQUENCE,
    model: Annotated[
        str | None, typer.Option(help="With --hosts: the shapes and the computing of a model, such as resnet50.")
    ] = None,
    computing: Annotated[
        str | None, typer.Option(help="With --model: let a step take this long, as on a device, such as 800ms.")
    ] = None,
    planned: Annotated[
        bool, typer.Option("--planned", help="With --hosts: also planned, and into the next forward pass.")
    ] = False,
    as_json: Json = False,
    save: Save = None,
) -> None:
    """Time a training step under each method, in turns with torch's DistributedDataParallel.

    With --local it runs beside DDP in float32; with --hosts over shaped links, beside DDP and its hooks. On a GPU the
    hosts train GPT-2 small.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: write --device cpu or --device cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; write --device cpu, or install torch with CUDA")
    if local == (hosts is not None):
        raise ValueError(
            "say where: write thinwire bench step --local, or thinwire bench step --hosts 4 --rate 1gbit as root"
        )
    for_hosts = {
        "rate": rate != "1gbit",
        "latency": latency,
        "batch": batch,
        "model": model,
        "planned": planned,
        "computing": computing,
    }
    stray = [f"--{name}" for name, given in (for_hosts if hosts is None else {"workers": workers}).items() if given]
    if stray:
        raise ValueError(f"{', '.join(stray)}: only with {'--hosts' if hosts is None else '--local'}; leave them out")
    if hosts is None:
        gpu = device == "cuda"
        workers = (4 if gpu else 2) if workers is None else workers
        params = (bench_hosts.PARAMS if gpu else 4 << 20) if params is None else params
        _step_local(workers, params, method, repeats, device, as_json=as_json, save=save)
        return
    job = _job(device, method, params, rate, 3 if repeats is None else repeats, budget, batch, sequence)
    if computing is not None and (model is None or batch is not None):
        raise ValueError("--computing takes the place of --batch: write --model resnet50 --computing 800ms")
    if model is not None:
        asleep = None if computing is None else seconds(computing, "computing", "--computing 800ms")
        job = job.of_model(model, asleep)
    job = replace(job, planned=planned)
    network = Network(hosts, rate, latency)
    job.check(hosts)
    reserve(save)
    with network, _turns(job.turns) as hear:
        gpu = device == "cuda"
        rows = launch(bench_hosts.bench, hosts, job, timeout=12 * 3600.0, hear=hear, hosts=network, gpu=gpu)[0]
    title = (
        f"One step, {hosts} hosts at {rate}, {rows[0]['params']:,} parameters, {job.work}, medians in ms. "
        "wire_bound_ms: bits of the busiest host over the rate; wire_share: its share of the step; "
        "cpu_ms: processor time of all hosts over the cores they share."
    )
    show(rows, as_json=as_json, title=title, columns=HOSTS, save=save)


def _job(
    device: str,
    method: list[str] | None,
    params: int | None,
    rate: str,
    turns: int,
    budget: float,
    batch: int | None,
    sequence: int,
) -> bench_hosts.Job:
    methods = list(dict.fromkeys(method or bench_hosts.METHODS))
    if device == "cpu":
        params = bench_hosts.PARAMS if params is None else params
        return bench_hosts.Job(methods, params, rate, turns, budget, bench_hosts.BATCH if batch is None else batch)
    if params is not None:
        raise ValueError("hosts on a GPU train GPT-2 small, whose size is given; leave --params out")
    batch = bench_hosts.GPU_BATCH if batch is None else batch
    return bench_hosts.Job(
        methods, bench_hosts.GPT2_PARAMS, rate, turns, budget, batch, device, gpt2.Shape(), sequence
    )


def _step_local(
    workers: int,
    params: int,
    method: list[str] | None,
    repeats: int | None,
    device: str,
    *,
    as_json: bool,
    save: Path | None,
) -> None:
    turns = 15 if repeats is None else repeats
    if params < 1 or turns < 1:
        raise ValueError("params and repeats are positive numbers; write --params 4194304 --repeats 15")
    methods = list(dict.fromkeys(["sgd", *(method or lab.METHODS)]))
    for text in methods:
        tw.method(text)
    reserve(save)
    with _turns(turns) as hear:
        gpu = device == "cuda"
        rows = launch(lab.bench, workers, methods, params, turns, device, timeout=3600.0, hear=hear, gpu=gpu)[0]
    title = (
        f"One step, {workers} workers, {rows[0]['params']:,} parameters, medians in ms. "
        "ddp_ms: DistributedDataParallel in float32, in turns with the methods."
    )
    show(rows, as_json=as_json, title=title, columns=STEP_GPU if device == "cuda" else STEP, save=save)


@contextmanager
def _turns(count: int) -> Iterator[Say]:
    """A line on standard error that says which turn of which method runs."""
    with line() as say_so:
        yield lambda news: say_so(f"turn {news[0]} of {count}: {news[1]}")
