"""What QSGD's theorems bound, measured: variance, levels that are not zero, lengths of the two Elias codes.

    variance      E|Q(v) - v|^2 / |v|^2 <= min(n / s^2, sqrt(n) / s)           lemma 3.1
    non-zeros     E|Q(v)|_0 <= s (s + sqrt(n))                                 lemma 3.1
    dense code    2.8 n + 32 bits at s = sqrt(n)                               corollary 3.3
    sparse code   (3 + 3/2 log2(2 (s^2 + n) / (s (s + sqrt(n))))) s (s + sqrt(n)) + 32 bits    theorem 3.2

with o(1) in the theorem taken as 0. Vectors are Gaussian, or pieces of a recorded gradient of a small net. Scales are
L2, one per vector. Lengths are those of the codes that thinwire sends, in whole bytes, with the scale and without the
header.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

import torch
from torch import Tensor

from thinwire.codecs.elias import EliasDense, EliasSparse
from thinwire.codecs.rans import Rans
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.codec import Codec
from thinwire.core.payload import HEADER
from thinwire.core.types import Key, Layout
from thinwire.lab import gradient
from thinwire.lab.records import Row

SHAPES = ((256, 4), (512, 4), (1024, 4), (512, 1), (4096, 1))  # n and s
DENSE = (1024, 4096, 16129)  # 127 levels, the most there are, at the last
SPARSE = (1024, 4096, 16384)
DRAWS = 40


def facts(draws: int = DRAWS) -> list[Row]:
    """One row per vector length, source and fact: `value` beside the paper's `limit`."""
    rows = []
    for source, vector in SOURCES.items():
        for n, s in SHAPES:
            quantiser = Qsgd(levels=s, norm="l2", block=n)
            vectors = [vector(n, i) for i in range(draws)]
            pairs = [(v, _sent(quantiser, v, i)) for i, v in enumerate(vectors)]
            lost = fmean(float((q - v).square().sum() / v.square().sum()) for v, q in pairs)
            kept = fmean(float((q != 0).sum()) for _, q in pairs)
            at = f"{source}, n={n}, s={s}"
            rows.append(_row("variance", at, lost, min(n / s**2, math.sqrt(n) / s)))
            rows.append(_row("non-zeros", at, kept, s * (s + math.sqrt(n))))
        for n in DENSE:
            for name, codec in (("Elias", EliasDense()), ("rANS", Rans())):
                value = _length(codec, math.isqrt(n), [vector(n, i) for i in range(draws)])
                rows.append(_row("dense code", f"{source}, {name}, n={n}", value, 2.8 * n + 32))
        for n in SPARSE:
            value = _length(EliasSparse(), 1, [vector(n, i) for i in range(draws)])
            rows.append(_row("sparse code", f"{source}, Elias, n={n}", value, sparse_limit(n, 1)))
    return rows


def sparse_limit(n: int, s: int) -> float:
    """Theorem 3.2 in bits, its o(1) taken as 0."""
    count = s * (s + math.sqrt(n))
    return (3 + 1.5 * math.log2(2 * (s**2 + n) / count)) * count + 32


def _gauss(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def _gradient(n: int, seed: int) -> Tensor:
    """A piece of the recorded gradient, from a place that the seed decides."""
    whole, _ = gradient.load()
    start = int(torch.randint(whole.numel() - n, (1,), generator=torch.Generator().manual_seed(seed)))
    return whole[start : start + n].clone()


SOURCES: dict[str, Callable[[int, int], Tensor]] = {"Gaussian": _gauss, "gradient": _gradient}


def _sent(quantiser: Qsgd, v: Tensor, step: int) -> Tensor:
    layout = Layout.flat(v.numel())
    return quantiser.decode(quantiser.encode(v, layout, Key(step=step)), layout)


def _length(codec: Codec, s: int, vectors: list[Tensor]) -> float:
    """Mean bits of a vector's scale and levels."""
    encoder = Channel(Qsgd(levels=s, norm="l2", block=None), codec=codec).encoder
    sizes = [encoder.encode(v, Layout.flat(v.numel()), Key(step=i)).nbytes for i, v in enumerate(vectors)]
    return 8.0 * fmean(size - HEADER.size for size in sizes)


def _row(kind: str, label: str, value: float, limit: float) -> Row:
    return {"kind": kind, "label": label, "seed": 0, "value": value, "limit": limit, "bits_per_element": None}
