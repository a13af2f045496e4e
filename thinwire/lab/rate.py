"""Error against bits: every quantiser with every code, at the bits that it really takes, beside Shannon's bound.

A row is a source, a method, 8 x bytes / elements of whole payloads, and |C(x) - x|^2 / |x|^2. `shannon_nmse` is
2^(-2 R) at those R bits: no code for a Gaussian does better; for other sources it is a ruler, not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.codecs import Codec, EliasDense, EliasSparse, GolombRuns, Huffman, Rans
from thinwire.compressors.dead_zone import DeadZone
from thinwire.core.coded import Coded, SymbolCompressor
from thinwire.core.compressor import Compressor
from thinwire.core.types import Key, Layout
from thinwire.lab import gradient, quantisers
from thinwire.lab.records import Row

SIZE = 1 << 20
RATES = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
CODECS: tuple[Codec, ...] = (EliasDense(), EliasSparse(), GolombRuns(), Huffman(), Rans())
DRAWS = 1 << 17  # elements over which the error of an unbiased method is averaged, at least


def sources(size: int = SIZE) -> dict[str, tuple[Tensor, Layout]]:
    """Seeded noise of two kinds, and the recorded gradient of a net."""
    g = torch.Generator().manual_seed(0)
    gauss = torch.randn(size, generator=g)
    u = torch.rand(size, generator=g) - 0.5
    laplace = -u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.4999999))
    flat = Layout.flat(size)
    return {"gaussian": (gauss, flat), "laplace": (laplace, flat), "gradient": gradient.load()}


def rows(size: int = SIZE, ids: Sequence[str] | None = None) -> Iterator[Row]:
    """One row for each source and method; of the compressors `ids` alone, if there are any."""
    made = quantisers.every(ids) if ids else {**quantisers.every(), **{c.id: c for c in map(DeadZone, RATES)}}
    for source, (x, layout) in sources(size).items():
        for name, c in made.items():
            error = _nmse(c, x, layout)
            yield _row(source, name, c, error, x, layout)
            if isinstance(c, SymbolCompressor):
                for codec in CODECS:  # lossless: the same error
                    yield _row(source, f"{name}+{codec.id}", Coded(c, codec), error, x, layout)


def plot(rows: Sequence[Row], path: Path) -> None:
    """One panel per source: bits across, error up, Shannon's bound; SVG, PNG or PDF by the name of the file."""
    pyplot = _pyplot()
    names = list(dict.fromkeys(row["source"] for row in rows))
    families = {_family(row["method"]) for row in rows}
    figure, panels = pyplot.subplots(1, len(names), figsize=(4.6 * len(names), 4.4), sharey=True, squeeze=False)
    for source, panel in zip(names, panels[0], strict=True):
        mine = [row for row in rows if row["source"] == source and row["nmse"] > 0]
        bits = [0.05 * 2 ** (i / 8) for i in range(70)]
        panel.plot(bits, [2.0 ** (-2 * b) for b in bits], color="black", lw=1, label="Shannon, Gaussian")
        for label, mark in ((label, mark) for label, mark in MARKS.items() if label in families):
            some = [row for row in mine if _family(row["method"]) == label]
            x, y = [row["bits_per_element"] for row in some], [row["nmse"] for row in some]
            panel.plot(x, y, mark, ms=4, lw=1, label=label)
        panel.set(xscale="log", yscale="log", xlim=(0.04, 20), ylim=(1e-6, 30), title=source)
        panel.set_xlabel("bits per element, measured")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("|C(x) - x|² / |x|²")
    panels[0][-1].legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


MARKS = {
    "packed": "s",
    "elias-dense": "^",
    "elias-sparse": "v",
    "golomb-runs": "+",
    "huffman": "x",
    "rans": "o",
    "dead-zone": ".-",
}


def check(path: Path | None) -> None:
    """Raise before the work when the plot cannot be drawn."""
    if path is not None:
        _pyplot()
        if path.suffix not in (".svg", ".png", ".pdf"):
            raise ValueError(f"{path} is not a plot; write --plot rate.svg, .png or .pdf")


def _pyplot() -> Any:
    try:
        import matplotlib  # noqa: PLC0415  (an extra)
    except ImportError as missing:
        raise ValueError("plots need matplotlib; write pip install 'thinwire[lab]'") from missing
    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot


def _family(method: str) -> str:
    if method.startswith("dead-zone"):
        return "dead-zone"
    return method.partition("+")[2].partition(":")[0] or "packed"


def _nmse(c: Compressor, x: Tensor, layout: Layout) -> float:
    repeats = max(1, DRAWS // x.numel()) if c.unbiased else 1
    total = 0.0
    for step in range(repeats):
        key = Key(seed=1, step=step)
        got = c.decode(c.encode(x, layout, key), layout, key=key)
        total += (got - x).double().square().sum().item()
    return total / repeats / x.double().square().sum().item()


def _row(source: str, name: str, c: Compressor, error: float, x: Tensor, layout: Layout) -> Row:
    bits = 8 * c.encode(x, layout, Key(seed=1)).nbytes / x.numel()
    return {
        "source": source,
        "method": name,
        "bits_per_element": bits,
        "nmse": error,
        "shannon_nmse": 2.0 ** (-2 * bits),
        "gap_bits": bits + 0.5 * math.log2(error) if error > 0 else None,
    }
