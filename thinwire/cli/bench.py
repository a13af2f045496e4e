"""`thinwire bench`: measurements on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch
import typer

from thinwire import kernels
from thinwire.cli.output import collect, errors, show
from thinwire.lab import bench_kernels

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = {
    "kernel": "",
    "method": "",
    "backend": "",
    "threads": "d",
    "gbps": ".1f",
    "copy_gbps": ".1f",
    "ratio": ".2f",
    "ms_p50": ".2f",
}


@app.callback()
def root() -> None:
    """Measure on this machine."""


@app.command("kernels")
def bench(
    size: Annotated[int, typer.Option(help="Floats in the input.")] = 1 << 24,
    method: Annotated[list[str] | None, typer.Option(help="Compressor id; may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option(help="Kernel tier, or 'all'; may be repeated.")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="Threads; may be repeated (default: 1 and all).")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each kernel, alternating with copies.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    save: Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file.")] = None,
) -> None:
    """Time the fused passes beside a memory copy of the same input, in the same run."""
    if size < 1 or repeats < 1 or any(t < 1 for t in threads or ()):
        raise ValueError(
            "size, repeats and threads are positive numbers; write --size 16777216 --repeats 15 --threads 1"
        )
    cores = torch.get_num_threads()
    counts = threads or sorted({1, cores})
    if max(counts) > (os.cpu_count() or 1):
        errors.print(f"note: {max(counts)} threads on {os.cpu_count()} cores", highlight=False)
    tiers = [
        t for b in backend or ["cpu"] for t in ([n for n in kernels.names() if n != "cpu"] if b == "all" else [b])
    ]
    rows = collect(
        bench_kernels.bench(size, method or bench_kernels.METHODS, tiers, counts, repeats), f"timing {size:,} floats"
    )
    show(
        rows,
        as_json=as_json,
        title="ratio: 1 is the speed of a memory copy (of as many bytes, for encode_ef)",
        columns=COLUMNS,
        save=save,
    )
