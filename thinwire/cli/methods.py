"""`thinwire methods`: everything that is registered, with its facts."""

from __future__ import annotations

import sys
from typing import Annotated

import torch
import typer

from thinwire import compressors
from thinwire.cli.output import say, show
from thinwire.core.compressor import Compressor
from thinwire.core.exchange import Exchange
from thinwire.core.memory import NoMemory
from thinwire.core.method import METHODS
from thinwire.core.recipe import Recipe
from thinwire.core.types import Layout
from thinwire.exchange.all_reduce import AllReduce
from thinwire.lab import quantisers
from thinwire.lab.records import Row
from thinwire.lab.references import reference

SIZE = 1 << 20
SAMPLE = (256, 256)
LAYOUT = Layout(("w",), ((1024, SIZE // 1024),))
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
    made, parts = [_method(name) for name in METHODS], _compressors()
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


def _method(name: str) -> Row:
    make = METHODS[name]
    one = make()
    paper = reference(sys.modules[make.__module__].__doc__)
    return {
        "axis": "method",
        "method": name,
        "paper": paper.paper,
        "author": paper.author,
        "year": paper.year,
        "arxiv": paper.arxiv,
        "exchange": one.exchange.name,
        "memory": _memory(one.exchange),
        "signal": one.sync.of.name,
        **_facts(_compressor(one.exchange)),
        "optimizer": one.recipe.words,
        "note": one.recipe.note,
        "about": _about(make.__module__),
    }


def _compressor(exchange: Exchange) -> Compressor:
    """What the gradient goes through: the first hop's compressor, or the numbers that an all-reduce sums in."""
    if isinstance(exchange, AllReduce) and exchange.wire != "fp32":
        return compressors.get(f"cast:format={exchange.wire}")
    return exchange.channels[0].encoder


def _memory(exchange: Exchange) -> str:
    names = dict.fromkeys(channel.memory.name for channel in exchange.channels)
    return " + ".join(name for name in names if name != NoMemory.name) or NoMemory.name


def _compressors() -> list[Row]:
    """The compressors with the settings of the tables, then the registered ones that the tables do not show."""
    shown = quantisers.every()
    names = {c.name for c in shown.values()}
    shown |= {name: compressors.get(name) for name in compressors.COMPRESSORS if name not in names}
    return [
        {"axis": "compressor", "method": text, **_facts(c), "about": _about(type(c).__module__)}
        for text, c in shown.items()
    ]


def _facts(c: Compressor) -> Row:
    delta = c.delta(SIZE)
    return {
        "bits_per_element": _bits(c),
        "unbiased": c.unbiased,
        "contraction": delta is not None,
        "omega": c.omega(SIZE),
        "delta": delta,
    }


def _about(module: str) -> str:
    return (sys.modules[module].__doc__ or "").strip().splitlines()[0]


def _bits(c: Compressor) -> float:
    """Bits per element of the body, measured on a Gaussian matrix of 65,536 elements if they depend on the data."""
    if c.fixed_size:
        return 8 * c.nbytes(LAYOUT) / SIZE
    x = torch.randn(SAMPLE, generator=torch.Generator().manual_seed(0))
    return 8 * c.encode(x).body.numel() / x.numel()
