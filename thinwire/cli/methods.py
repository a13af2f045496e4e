"""`thinwire methods`: everything that is registered, with its facts."""

from __future__ import annotations

from typing import Annotated

import typer

from thinwire.cli.output import say, show
from thinwire.core.method import METHODS
from thinwire.core.recipe import Recipe
from thinwire.lab.catalogue import SIZE, compressor_rows, method_row

METHOD_COLUMNS = {
    "method": "",
    "author": "",
    "year": "",
    "arxiv": "",
    "exchange": "",
    "memory": "",
    "signal": "",
    "bits_per_element": ".2f",
    "unbiased": "",
    "contraction": "",
}
COMPRESSOR_COLUMNS = {
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
    """List every method and compressor: id, paper, axes, bits per element, unbiased or contraction."""
    made, parts = [method_row(name) for name in METHODS], compressor_rows()
    if as_json:
        show([*made, *parts], as_json=True, title="", columns={})
        return
    title = (
        f"Methods, with their default settings; facts are those of the compressor on {SIZE:,} elements, bits those "
        "of one hop (on a Gaussian where they depend on the data)."
    )
    show(made, as_json=False, title=title, columns=METHOD_COLUMNS)
    say(f"Each is trained with {Recipe().words} and the task's step size, but for")
    for row in made:
        if METHODS[row["method"]]().recipe != Recipe():
            say(f"  {row['method']}: {'; '.join(filter(None, (row['optimizer'], row['note'])))}")
    show(parts, as_json=False, title=f"Compressors, on {SIZE:,} elements.", columns=COMPRESSOR_COLUMNS)
