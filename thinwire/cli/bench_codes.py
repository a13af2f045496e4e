"""`thinwire bench compress`, `rate` and `checksum`: what payloads hold, without any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.options import Json, Save
from thinwire.cli.output import collect, errors, keep, reserve, show
from thinwire.lab import bench_checksum, gradient, quantisers, rate
from thinwire.lab.compress import compare

Compressors = Annotated[
    list[str] | None, typer.Option(help="Compressor id; may be repeated (default: those of the docs' table).")
]
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
RATE = {
    "source": "",
    "method": "",
    "bits_per_element": ".3f",
    "nmse": ".2e",
    "shannon_nmse": ".2e",
    "gap_bits": ".3f",
}
CHECKSUM = {
    "kind": "",
    "changed": ",",
    "sum_missed": "d",
    "crc32c_missed": "d",
    "sum_low16": "d",
    "crc32c_low16": "d",
}


def compress(method: Compressors = None, as_json: Json = False, save: Save = None) -> None:
    """Compress a recorded gradient with every quantiser: bytes on the wire, error, time."""
    reserve(save)
    x, layout = gradient.load()
    rows = collect(compare(x, layout, quantisers.every(method)), "compressing")
    title = (
        f"A gradient of {layout.numel:,} elements in {len(layout.names)} tensors, {4 * layout.numel:,} bytes raw. "
        "nmse is E|C(x) - x|^2 / |x|^2."
    )
    show(rows, as_json=as_json, title=title, columns=COMPRESS, save=save)


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
