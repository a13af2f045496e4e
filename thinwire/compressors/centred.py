"""Randomised mean estimation: a few elements are sent, and the others are decoded as a centre mu of the vector.

An element is sent with probability p_j, and is then decoded so that the mean over draws is exact:

    C(x)_j = x_j / p_j - ((1 - p_j) / p_j) mu    with probability p_j, else mu
    E|C(x) - x|^2 = sum_j (1/p_j - 1) (x_j - mu)^2

`CentredK`: p_j = k/d and mu = mean x, the best for equal p_j. Exactly k places are drawn, from the sender's key, so
that they do not travel: sends mu and k values, 32 bits each. E|C(x) - x|^2 = (d/k - 1) |x - mu|^2.

`Centred`: the best p_j for a budget of s = ratio d elements, p_j = min(lambda |x_j - mu|, 1) with sum_j p_j = s, and
then the best mu for those p_j, in turns (`rounds`), each of which lowers the error:

    mu = sum_j w_j x_j / sum_j w_j,    w_j = 1/p_j - 1

An element with p_j < 1 is decoded as mu +- 1/lambda, so that it is sent as 2 bits and a place (Golomb coded gaps);
the others take 32 bits more. mu and 1/lambda take 32 bits each.

Bounds: E C(x) = x, E|C(x) - x|^2 <= (d/s - 1) |x - mean x|^2 <= (d/s - 1) |x|^2. A mean over n ranks that draw by
themselves has 1/n^2 of the sum of their errors. NaN or inf anywhere decodes to NaN everywhere.

>>> CentredK(ratio=0.1).omega(1000), Centred(ratio=0.1).omega(1000)
(9.0, 9.0)

Reference: Konecny, Richtarik, "Randomized distributed mean estimation: accuracy vs. communication", Frontiers in
Applied Mathematics and Statistics 4, 2018, arXiv 1611.07555, equations 1 and 4, sections 3 to 6.

Departs from the paper: the budget is per rank; the paper's is over all ranks, which would have to agree on lambda.
Equal probabilities come with a fixed number of places alone, which has the same error and needs no places on the
wire.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import torch

from thinwire.compressors.sparse import check_count, how_many
from thinwire.compressors.wangni import Wangni, inverse_lambda
from thinwire.core.compressor import Compressor
from thinwire.core.errors import PayloadError
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

TOP = torch.finfo(torch.float32).max


@final
@dataclass(frozen=True)
class CentredK(Compressor):
    """The share `ratio` of the elements, or `k` of them, at random; the others are their mean."""

    name: ClassVar[str] = "centred-k"
    ratio: float = 0.01
    k: int | None = None

    def __post_init__(self) -> None:
        check_count("CentredK", self.ratio, self.k)

    def count(self, n: int) -> int:
        """How many of n elements are sent."""
        return how_many(self.ratio, self.k, n)

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """d/k - 1, for a vector whose mean is 0."""
        return d / max(1, self.count(d)) - 1

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        share = self.count(d) / max(1, d)
        return 2 - 1 / share if share > 0.5 else None

    def nbytes(self, layout: Layout) -> int:
        """The mean and the values."""
        return 4 + 4 * self.count(layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the mean, and the values at places that follow from the key."""
        wide = x.float()
        sent = body.view(torch.float32)
        sent[0] = mean(wide) if selection.finite(x) else math.nan
        sent[1:] = wide[self._places(layout, key, x.device)]
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Draw the places again, move the values away from the mean, and add."""
        sent = body.view(torch.float32)
        scale = layout.numel / self.count(layout.numel)
        values = (sent[0] + (sent[1:].double() - sent[0].double()) * scale).clamp(-TOP, TOP).float()
        x = sent[0].expand(layout.numel).clone()
        x[self._places(layout, key, body.device)] = torch.where(sent[0].isfinite(), values, torch.nan)
        out.copy_(out + x * weight)

    def _places(self, layout: Layout, key: Key, device: torch.device) -> Tensor:
        return selection.subset(key, layout.numel, self.count(layout.numel), device)


@final
@dataclass(frozen=True)
class Centred(Compressor):
    """The share `ratio` of the elements on average, drawn by their distance from the centre."""

    name: ClassVar[str] = "centred"
    fixed_size: ClassVar[bool] = False
    ratio: float = 0.01
    rounds: int = 1

    def __post_init__(self) -> None:
        check_count("Centred", self.ratio, None)
        if self.rounds < 0:
            raise ValueError(f"Centred(rounds={self.rounds}): write 0 to keep to the mean, or more")

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """d/s - 1: equal probabilities around the mean are never better."""
        return 1 / self.ratio - 1

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return 2 - 1 / self.ratio if self.ratio > 0.5 else None

    def nbytes(self, layout: Layout) -> int:
        """The centre, and the bytes if all elements were sent as they are."""
        return 4 + self._around.nbytes(layout)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the centre, and what was drawn of the distances from it."""
        mu = centre(x.float(), self.ratio * x.numel(), self.rounds) if selection.finite(x) else math.nan
        body[:4].view(torch.float32).fill_(mu)
        used = self._around.write(distances(x.float(), mu), layout, key, body[4:])
        assert used is not None
        return 4 + used

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add the centre and what was drawn."""
        if body.numel() < 8:
            raise PayloadError(f"{self.id}: a centre and a body take at least 8 bytes; {body.numel()} arrived")
        x = body[:4].clone().view(torch.float32).expand(layout.numel).clone()
        self._around.add(body[4:].clone(), layout, key, x, 1.0)
        out.copy_(out + torch.where(x.isinf(), x.clamp(-TOP, TOP), x) * weight)

    @property
    def _around(self) -> Wangni:
        """The best probabilities for a vector whose centre is 0."""
        return Wangni(self.ratio)


def mean(x: Tensor) -> float:
    """The mean, added one element after another in float64, so that it is the same on every machine."""
    return _ratio(x.double(), torch.ones_like(x, dtype=torch.float64)) if x.numel() else 0.0


def distances(x: Tensor, mu: float) -> Tensor:
    """x - mu in float32, saturated at the largest."""
    return (x.double() - mu).clamp(-TOP, TOP).float()


def centre(x: Tensor, s: float, rounds: int) -> float:
    """mu after `rounds` turns of the best p_j for mu and the best mu for those p_j; a float32.

    >>> centre(torch.tensor([0.0, 0.0, 1.0, 7.0]), s=2.0, rounds=0)
    2.0
    >>> centre(torch.tensor([0.0, 0.0, 1.0, 7.0]), s=2.0, rounds=1)  # 7 is certain to go, and no longer counts
    0.5714285969734192
    """
    mu = mean(x)
    least, step = _error(x, mu, s)
    for _ in range(rounds):
        a = distances(x, mu).double().abs()
        w = torch.where(a < step, step / a.clamp(min=step * 2.0**-40) - 1, 0.0)
        if not bool(w.sum() > 0):
            break
        other = _ratio(x.double() * w, w)
        error, step = _error(x, other, s)
        if not error < least:  # an element at the centre has p_j = 0, and holds it there
            break
        mu, least = other, error
    return mu


def _error(x: Tensor, mu: float, s: float) -> tuple[float, float]:
    """E|C(x) - x|^2 with the best probabilities around mu, and their 1/lambda."""
    a = distances(x, mu)
    step = inverse_lambda(a, s)
    size = a.double().abs()
    return _sum(((step - size) * size).clamp(min=0.0)), step


def _ratio(above: Tensor, below: Tensor) -> float:
    return float(torch.tensor(_sum(above) / _sum(below), dtype=torch.float32))


def _sum(x: Tensor) -> float:
    return float(np.cumsum(x.cpu().numpy())[-1]) if x.numel() else 0.0
