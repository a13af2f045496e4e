"""The quantisers that tables show: one or two settings of each file in `thinwire/compressors`."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire import compressors
from thinwire.core.compressor import Compressor

IDS = (
    "identity",
    "cast:format=bf16",
    "cast:format=fp16",
    "natural",
    "int:bits=8",
    "qsgd:bits=8",
    "low-precision:bits=8",
    "float:format=e4m3",
    "float:format=e5m2",
    "natural-dithering:levels=8,norm=l2",
    "float:format=e2m1,block=32",
    "int:bits=4,block=128",
    "int:bits=4,block=128,rounding=stochastic",
    "qsgd:bits=4",
    "qsgd:bits=4,symmetric=false",
    "qsgd:levels=4,norm=l2",
    "k-level:k=16",
    "laq-grid:bits=4",
    "qsgd:bits=2",
    "terngrad:clip=2.5",
    "one-bit",
    "scaled-sign",
    "sign",
    "qsgd:bits=1",
)


def every(ids: Sequence[str] | None = None) -> dict[str, Compressor]:
    """An instance of each, by its id with every setting that matters spelt out; or of other ids, if there are any."""
    return {text: compressors.get(text) for text in ids or IDS}
