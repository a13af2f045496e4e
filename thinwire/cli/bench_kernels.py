"""`thinwire bench kernels`."""

from __future__ import annotations

import os
from typing import Annotated

import torch
import typer

from thinwire import kernels
from thinwire.cli.options import Json, Save
from thinwire.cli.output import collect, errors, reserve, show
from thinwire.lab import bench_gpu
from thinwire.lab import bench_kernels as lab

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


def bench_kernels(
    size: Annotated[int | None, typer.Option(help="Floats in the input (default: 2^24, on a GPU 2^26).")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Compressor id; may be repeated.")] = None,
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
    reserve(save)
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
    rows = collect(lab.bench(size, method or lab.METHODS, tiers, counts, repeats), f"timing {size:,} floats")
    show(
        rows,
        as_json=as_json,
        title="ratio: 1 is the speed of a memory copy (of as many bytes, for encode_ef)",
        columns=KERNELS,
        save=save,
    )
