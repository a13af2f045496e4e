"""Everything that is registered, with its facts: one row per method, one per compressor."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from thinwire import compressors
from thinwire.core.compressor import Compressor
from thinwire.core.exchange import Exchange
from thinwire.core.memory import NoMemory
from thinwire.core.method import METHODS
from thinwire.core.types import Layout
from thinwire.exchange.all_reduce import AllReduce
from thinwire.lab import quantisers
from thinwire.lab.records import Row
from thinwire.lab.references import reference

SIZE = 1 << 20
"""Elements of the vector that facts are said of."""
SAMPLE = (256, 256)
LAYOUT = Layout(("w",), ((1024, SIZE // 1024),))


def method_row(name: str) -> Row:
    """A method with its default settings: its paper, its axes, and the facts of its compressor."""
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
        "about": about(make),
    }


def _compressor(exchange: Exchange) -> Compressor:
    """What the gradient goes through: the first hop's compressor, or the numbers that an all-reduce sums in."""
    if isinstance(exchange, AllReduce) and exchange.wire != "fp32":
        return compressors.get(f"cast:format={exchange.wire}")
    return exchange.channels[0].encoder


def _memory(exchange: Exchange) -> str:
    names = dict.fromkeys(channel.memory.name for channel in exchange.channels)
    return " + ".join(name for name in names if name != NoMemory.name) or NoMemory.name


def compressor_rows() -> list[Row]:
    """The compressors with the settings of the tables, then the registered ones that the tables do not show."""
    shown = quantisers.every()
    names = {c.name for c in shown.values()}
    shown |= {name: compressors.get(name) for name in compressors.COMPRESSORS if name not in names}
    return [{"axis": "compressor", "method": text, **_facts(c), "about": about(type(c))} for text, c in shown.items()]


def _facts(c: Compressor) -> Row:
    delta = c.delta(SIZE)
    return {
        "bits_per_element": _bits(c),
        "unbiased": c.unbiased,
        "contraction": delta is not None,
        "omega": c.omega(SIZE),
        "delta": delta,
    }


def about(made: Callable[..., object]) -> str:
    """The first line of the file that it is in, or else its own; another package may have neither."""
    lines = (sys.modules[made.__module__].__doc__ or made.__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def _bits(c: Compressor) -> float:
    """Bits per element of the body, measured on a Gaussian matrix of 65,536 elements if they depend on the data."""
    if c.fixed_size:
        return 8 * c.nbytes(LAYOUT) / SIZE
    x = torch.randn(SAMPLE, generator=torch.Generator().manual_seed(0))
    return 8 * c.encode(x).body.numel() / x.numel()
