"""`thinwire methods`: everything that is registered, with its facts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from thinwire import compressors
from thinwire.cli.output import show
from thinwire.core.compressor import Compressor
from thinwire.core.method import METHODS
from thinwire.core.types import Layout
from thinwire.lab import quantisers
from thinwire.lab.records import Row

SIZE = 1 << 20
COLUMNS = {
    "axis": "",
    "method": "",
    "bits_per_element": ".2f",
    "unbiased": "",
    "omega": ".3g",
    "delta": ".3g",
    "about": "",
}


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """List every method and compressor: id, bits an element, unbiased or contraction."""
    rows = [*_methods(), *_compressors()]
    show(rows, as_json=as_json, title=f"Facts for {SIZE:,} elements; bits are of one payload.", columns=COLUMNS)


def _methods() -> list[Row]:
    rows = []
    for name in METHODS:
        channel = METHODS[name]().exchange.channels[0]
        rows.append(_row("method", name, METHODS[name].__module__, channel.encoder))
    return rows


def _compressors() -> list[Row]:
    """The settings of the tables, then registered names that they do not show."""
    shown = quantisers.every()
    names = {c.name for c in shown.values()}
    shown |= {name: compressors.get(name) for name in compressors.COMPRESSORS if name not in names}
    return [_row("compressor", text, type(c).__module__, c) for text, c in shown.items()]


def _row(axis: str, name: str, module: str, c: Compressor) -> Row:
    layout = Layout(("w",), ((1024, SIZE // 1024),))
    about = (sys.modules[module].__doc__ or "").strip().splitlines()[0]
    return {
        "axis": axis,
        "method": name,
        "bits_per_element": 8 * c.nbytes(layout) / SIZE,
        "unbiased": c.unbiased,
        "omega": c.omega(SIZE),
        "delta": c.delta(SIZE),
        "about": about,
    }
