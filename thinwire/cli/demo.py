"""`thinwire demo`: compress a recorded gradient with every quantiser and print what each costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.output import collect, show
from thinwire.lab import gradient, quantisers
from thinwire.lab.compress import compare

COLUMNS = {
    "method": "",
    "bytes_sent": ",",
    "bits_per_element": ".2f",
    "ratio": ".1f",
    "nmse": ".2e",
    "unbiased": "",
    "encode_ms": ".2f",
    "decode_ms": ".2f",
}


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    save: Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file.")] = None,
) -> None:
    """Compress a recorded gradient with every quantiser: bytes on the wire, error, time."""
    x, layout = gradient.load()
    rows = collect(compare(x, layout, quantisers.every()), "compressing")
    title = (
        f"A gradient of {layout.numel:,} elements in {len(layout.names)} tensors, {4 * layout.numel:,} bytes raw. "
        "nmse is E|C(x) - x|^2 / |x|^2."
    )
    show(rows, as_json=as_json, title=title, columns=COLUMNS, save=save)
