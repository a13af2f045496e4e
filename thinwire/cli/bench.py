"""`thinwire bench`: measurements on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

import thinwire as tw
from thinwire import kernels
from thinwire.cli.output import collect, errors, keep, line, reserve, show
from thinwire.cli.progress import train_local
from thinwire.lab import (
    accuracy,
    bench_checksum,
    bench_eta,
    bench_gpu,
    bench_hosts,
    bench_kernels,
    bench_step,
    gpt2,
    gradient,
    quantisers,
    rate,
    tasks,
)
from thinwire.lab.compress import compare
from thinwire.lab.launch import Say, launch
from thinwire.lab.net import Network

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Save = Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file.")]
Compressors = Annotated[list[str] | None, typer.Option(help="Compressor id; may be repeated.")]
KERNELS = {
    "kernel": "",
    "method": "",
    "backend": "",
    "threads": "d",
    "gbps": ".1f",
    "copy_gbps": ".1f",
    "ratio": ".2f",
    "ms_p50": ".2f",
}
KERNELS_GPU = {
    "kernel": "",
    "method": "",
    "backend": "",
    "bytes": ",",
    "gbps": ".0f",
    "copy_gbps": ".0f",
    "ratio": ".2f",
    "ms_p50": ".3f",
}
COMPRESS = {
    "method": "",
    "bytes_sent": ",",
    "bits_per_element": ".2f",
    "ratio": ".1f",
    "nmse": ".2e",
    "unbiased": "",
    "encode_ms": ".2f",
    "decode_ms": ".2f",
}
RATE = {"source": "", "method": "", "bits_per_element": ".3f", "nmse": ".2e"}
RATE |= {"shannon_nmse": ".2e", "gap_bits": ".3f"}
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
ETA = {
    "graph": "",
    "ranks": "",
    "method": "",
    "compressor": "",
    "eta": ".2f",
    "error": ".4f",
    "best_eta": ".2f",
    "best_error": ".4f",
    "times": ".2f",
}
CHECKSUM = {
    "kind": "",
    "changed": ",",
    "sum_missed": "d",
    "crc32c_missed": "d",
    "sum_low16": "d",
    "crc32c_low16": "d",
}
ACCURACY = {"method": "", "seeds": "d", "accuracy": ".2%", "lowest": ".2%", "highest": ".2%", "points": "+.2f"}


@app.callback()
def root() -> None:
    """Measure on this machine."""


@app.command("kernels")
def bench(
    size: Annotated[int | None, typer.Option(help="Floats in the input (default: 2^24, on a GPU 2^26).")] = None,
    method: Compressors = None,
    device: Annotated[str, typer.Option(help="'cpu' or 'cuda'.")] = "cpu",
    backend: Annotated[list[str] | None, typer.Option(help="Kernel tier, or 'all'; may be repeated.")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="Threads; may be repeated (default: 1 and all).")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each kernel, alternating with copies.")] = 15,
    as_json: Json = False,
    save: Save = None,
) -> None:
    """Time the fused passes beside a memory copy of the same input, in the same run."""
    if (size is not None and size < 1) or repeats < 1 or any(t < 1 for t in threads or ()):
        raise ValueError(
            "size, repeats and threads are positive numbers; write --size 16777216 --repeats 15 --threads 1"
        )
    if device != "cpu":
        if threads:
            raise ValueError(f"threads are the CPU's; with --device {device} leave --threads out")
        place = bench_gpu.check(device)
        count, names = size or bench_gpu.SIZE, method or bench_gpu.METHODS
        tiers = [t for b in backend or ["gpu"] for t in (("gpu", "reference") if b == "all" else (b,))]
        gpu_rows = bench_gpu.bench(count, names, tiers, repeats, place, bench_gpu.events)
        rows = collect(gpu_rows, f"timing {count:,} floats")
        title = f"{rows[0]['device']}. ratio: 1 is the speed of a copy on the GPU of as many bytes"
        show(rows, as_json=as_json, title=title, columns=KERNELS_GPU, save=save)
        return
    size = size or 1 << 24
    cores = torch.get_num_threads()
    counts = threads or sorted({1, cores})
    if max(counts) > (os.cpu_count() or 1):
        errors.print(f"note: {max(counts)} threads on {os.cpu_count()} cores", highlight=False)
    tiers = [
        t
        for b in backend or ["cpu"]
        for t in ([n for n in kernels.names() if n not in ("cpu", "gpu")] if b == "all" else [b])
    ]
    rows = collect(
        bench_kernels.bench(size, method or bench_kernels.METHODS, tiers, counts, repeats), f"timing {size:,} floats"
    )
    show(
        rows,
        as_json=as_json,
        title="ratio: 1 is the speed of a memory copy (of as many bytes, for encode_ef)",
        columns=KERNELS,
        save=save,
    )


@app.command("compress")
def compress(method: Compressors = None, as_json: Json = False, save: Save = None) -> None:
    """Compress a recorded gradient with every quantiser: bytes on the wire, error, time."""
    x, layout = gradient.load()
    rows = collect(compare(x, layout, quantisers.every(method)), "compressing")
    title = (
        f"A gradient of {layout.numel:,} elements in {len(layout.names)} tensors, {4 * layout.numel:,} bytes raw. "
        "nmse is E|C(x) - x|^2 / |x|^2."
    )
    show(rows, as_json=as_json, title=title, columns=COMPRESS, save=save)


@app.command("rate")
def bench_rate(
    size: Annotated[int, typer.Option(help="Elements of the Gaussian and of the Laplace source.")] = rate.SIZE,
    method: Compressors = None,
    as_json: Json = False,
    save: Save = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the rows: a .svg, .png or .pdf file.")] = None,
) -> None:
    """Error against bits: every quantiser with every code, at its measured bits, beside Shannon's bound."""
    if size < 1:
        raise ValueError(f"size={size} is not a number of elements; write --size {rate.SIZE}")
    rate.check(plot)
    reserve(save, plot)
    rows = collect(rate.rows(size, method), "coding")
    if plot is not None:
        rate.plot(rows, plot)
        errors.print(f"plot written to {plot}", soft_wrap=True)
    title = "nmse: |C(x) - x|^2 / |x|^2; shannon_nmse: 2^(-2 bits), a Gaussian's bound; gap_bits: bits above it."
    show(rows, as_json=as_json, title=title, columns=RATE, save=save)


@app.command("checksum")
def checksum(
    mutations: Annotated[int, typer.Option(help="Damaged payloads, of all kinds together.")] = 1_000_000,
    as_json: Json = False,
    save: Save = None,
) -> None:
    """Damage payloads and count what the checksum does not find, and what CRC-32C would not."""
    if mutations < 1:
        raise ValueError(f"mutations={mutations} is not a number of payloads; write --mutations 1000000")
    reserve(save)
    rows = collect(bench_checksum.rows(mutations), "damaging")
    keep(save, rows)
    title = "missed: damaged payloads taken for whole; low16: with a checksum that is right in its low 16 bits."
    show(bench_checksum.summary(rows), as_json=as_json, title=title, columns=CHECKSUM)


@app.command("eta")
def eta(
    lr: Annotated[float, typer.Option(help="Of every rank's gradient steps.")] = 0.05,
    steps: Annotated[int, typer.Option(help="Of a run.")] = 160,
    as_json: Json = False,
    save: Save = None,
) -> None:
    """The eta that DeepSqueeze and CHOCO-SGD choose beside a grid of etas, on quadratics."""
    if not lr > 0 or steps < 5:
        raise ValueError("lr is positive and steps are 5 or more; write --lr 0.05 --steps 160")
    reserve(save)
    rows = collect(bench_eta.rows(lr, steps), "gossiping")
    keep(save, rows)
    title = (
        "error: distance of the mean model to the optimum over its length; times: that of the best eta of the grid."
    )
    show(bench_eta.summary(rows), as_json=as_json, title=title, columns=ETA)


@app.command("step")
def step(
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
    if hosts is None:
        gpu = device == "cuda"
        workers = workers or (4 if gpu else 2)
        params = (bench_hosts.PARAMS if gpu else 4 << 20) if params is None else params
        _step_local(workers, params, method, repeats, device, as_json=as_json, save=save)
        return
    job = _job(device, method, params, rate, 3 if repeats is None else repeats, budget, batch, sequence)
    if model is not None:
        job = job.of_model(model)
    job = replace(job, planned=planned)
    network = Network(hosts, rate, latency)
    job.check(hosts)
    reserve(save)
    with network, _turns(job.turns) as hear:
        gpu = device == "cuda"
        rows = launch(bench_hosts.bench, hosts, job, timeout=12 * 3600.0, hear=hear, hosts=network, gpu=gpu)[0]
    title = (
        f"One step, {hosts} hosts at {rate}, {rows[0]['params']:,} parameters, batch of {job.batch}, medians in ms. "
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
    methods = list(dict.fromkeys(["sgd", *(method or bench_step.METHODS)]))
    for text in methods:
        tw.method(text)
    reserve(save)
    with _turns(turns) as hear:
        gpu = device == "cuda"
        rows = launch(bench_step.bench, workers, methods, params, turns, device, timeout=3600.0, hear=hear, gpu=gpu)[
            0
        ]
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


@app.command("accuracy")
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
    title = f"{task}, {workers} workers, {rows[0]['epochs']} epochs; points: percentage points of accuracy above sgd."
    keep(save, rows)
    show(rows if as_json else accuracy.summary(records), as_json=as_json, title=title, columns=ACCURACY)
