"""ATOMO: a gradient is a sum of atoms; send each with a probability, scaled up, so that the mean is exact.

With g = sum_i lambda_i a_i and a budget of s atoms per vector or matrix:

    g^ = sum_i t_i (lambda_i / p_i) a_i,    t_i ~ Bernoulli(p_i),    sum_i p_i = s

The p_i that minimise the variance sum_i lambda_i^2 (1/p_i - 1) are found as follows. Take |lambda| in falling order.
While the largest that remains has |lambda_j| s_left >= sum_{i >= j} |lambda_i|, set p_j = 1 and lower s_left by one.
The others get p_i = s_left |lambda_i| / their sum. If no atom is that large, the variance is
|lambda|_1^2 / s - |lambda|_2^2.

`AtomoEntries`: atoms are elements; s is the share `budget` of them. Sends the number of atoms (32 bits), their places
(Golomb coded gaps) and values. omega = d/s - 1, which equal p_i attain. The probabilities are those of `Wangni`, in
float64.

`AtomoSpectral`: atoms are singular vectors of every tensor as a matrix (first dimension x the rest; vectors are
folded into the squarest matrix, padded). Sends, for each matrix, the number of atoms (32 bits) and sqrt(lambda_i /
p_i) times u_i and v_i: 32 (m + k) bits per atom. Tensors for which s atoms are no smaller are sent as they are. omega
= min(m, k)/s - 1 <= sqrt(d)/s - 1. The decomposition is LAPACK's in float64: machines may differ in the bits that
they send, but all decode them alike.

`thinwire.compressors.atomo_fourier` has cosines as atoms.

Reference: Wang, Sievert, Liu, Charles, Papailiopoulos, Wright, "ATOMO: communication-efficient learning via atomic
sparsification", NeurIPS 2018, arXiv 1806.04090, algorithm 1.

Departs from the paper: nothing. The authors' code does depart from it: it clips p_i at 1 without giving the excess to
the other atoms, and draws again when nothing was picked, which is biased; it folds vectors into two columns, and
convolutions another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

import numpy as np
import torch

from thinwire import kernels
from thinwire.codecs.gaps import pack_gaps, unpack_gaps
from thinwire.compressors.block import contraction
from thinwire.compressors.low_rank import multiply
from thinwire.compressors.sparse import most_gaps, read_count
from thinwire.core.compressor import Compressor
from thinwire.core.desk import brought
from thinwire.core.errors import PayloadError
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

TOP = torch.finfo(torch.float32).max
BROKEN = -1  # the number of atoms of a matrix that holds NaN or inf


def probabilities(size: Tensor, s: float) -> Tensor:
    """The probabilities (float64) of atoms with magnitudes `size`: they sum to `s`, or all are 1 where size > 0.

    >>> probabilities(torch.tensor([8.0, 1.0, 1.0]), s=2.0)
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    a, order = torch.sort(size.double().cpu(), descending=True, stable=True)
    rest = np.cumsum(a.numpy()[::-1])[::-1]  # one addition after another: the same on every machine
    left = s - torch.arange(a.numel(), dtype=torch.float64)
    certain = (a * left >= torch.from_numpy(rest.copy())) & (a > 0)
    j = int(certain.long().cumprod(0).sum())
    p = torch.zeros_like(a)
    p[:j] = 1.0
    if j < a.numel() and rest[j] > 0:
        p[j:] = (a[j:] / float(rest[j]) * float(left[j])).clamp(max=1.0)
    return torch.empty_like(p).scatter_(0, order, p).to(size.device)


def sample(p: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Which are drawn, and with what probability: p rounded up to a multiple of 2^-32, so that there is no bias."""
    steps = (p * 2.0**32).ceil()
    return noise.to(p.device) < steps.long(), steps * 2.0**-32


@final
@dataclass(frozen=True)
class AtomoEntries(Compressor):
    """The share `budget` of the elements on average."""

    name: ClassVar[str] = "atomo-entries"
    fixed_size: ClassVar[bool] = False
    budget: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise ValueError(f"AtomoEntries(budget={self.budget}): write the share of the elements, 0 < budget <= 1")

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """d/s - 1."""
        return 1 / self.budget - 1

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))

    def nbytes(self, layout: Layout) -> int:
        """The bytes if all elements were sent."""
        return 4 + 4 * layout.numel + most_gaps(layout.numel, layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the count, the values and the places."""
        wide, n = brought(x).float(), x.numel()  # sums are made there, one after another
        good = wide.isfinite()
        p = probabilities(torch.where(good, wide.abs(), 0.0), self.budget * n)
        drawn, had = sample(torch.where(good, p, 1.0), kernels.get("cpu").noise(key, n))
        at = drawn.nonzero()[:, 0]
        values = wide[at].double() / had[at]
        values = torch.where(values.isfinite(), values.clamp(-TOP, TOP), torch.nan).float()
        places, stop = pack_gaps(at, n), 4 + 4 * at.numel()
        body[:4].view(torch.int32).fill_(at.numel())
        body[4:stop].view(torch.float32).copy_(values)
        body[stop : stop + places.numel()].copy_(places)
        return stop + places.numel()

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add what was drawn."""
        count = read_count(body, layout.numel)
        stop = 4 + 4 * count
        if body.numel() < stop:
            raise PayloadError(f"{self.id}: {count} values take {stop} bytes; {body.numel()} arrived")
        selection.add_at(
            out, unpack_gaps(body[stop:], count, layout.numel), body[4:stop].clone().view(torch.float32), weight
        )


class Matrix(NamedTuple):
    """Elements `start` to `stop` of a vector as an m x k matrix; `raw`: sent as they are."""

    start: int
    stop: int
    m: int
    k: int
    raw: bool


@final
@dataclass(frozen=True)
class AtomoSpectral(Compressor):
    """`budget` singular vectors per matrix on average."""

    name: ClassVar[str] = "atomo-spectral"
    fixed_size: ClassVar[bool] = False
    budget: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.budget < math.inf:
            raise ValueError(f"AtomoSpectral(budget={self.budget}): write how many singular vectors per matrix")

    @property
    def unbiased(self) -> bool:
        """Always, by construction."""
        return True

    def omega(self, d: int) -> float | None:
        """sqrt(d)/s - 1, which a square matrix attains."""
        return max(0.0, math.sqrt(d) / self.budget - 1)

    def delta(self, d: int) -> float | None:
        """1 - omega if omega < 1, otherwise None."""
        return contraction(self.omega(d))

    def nbytes(self, layout: Layout) -> int:
        """The bytes if all singular vectors were sent."""
        return sum(
            4 * (t.stop - t.start) if t.raw else 4 + 4 * min(t.m, t.k) * (t.m + t.k) for t in self.matrices(layout)
        )

    def matrices(self, layout: Layout) -> list[Matrix]:
        """How every tensor that has elements is cut into a matrix."""
        found = []
        for start, size, shape in zip(layout.offsets, layout.sizes, layout.shapes, strict=False):
            if size:
                m = shape[0] if len(shape) > 1 and 1 < shape[0] < size else math.isqrt(size)
                k = -(-size // m)
                found.append(Matrix(start, start + size, m, k, self.budget * (m + k + 1) >= size))
        return found

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write tensor after tensor: its elements, or a count and the atoms that were drawn."""
        wide, at = x.float(), 0
        noise = kernels.get("cpu").noise(key, layout.numel)
        for t in self.matrices(layout):
            part = wide[t.start : t.stop]
            sent = part if t.raw else self._atoms(part, t, noise[t.start : t.stop])
            stop = at + 4 * sent.numel()
            body[at:stop].view(torch.float32).copy_(sent)
            at = stop
        return at

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add the products of the atoms that were drawn, in float64, one after another."""
        at = 0
        for t in self.matrices(layout):
            size, part = t.stop - t.start, out[t.start : t.stop]
            if t.raw:
                stop = at + 4 * size
            else:
                count = int(_take(body, at, at + 4).view(torch.int32)) if body.numel() >= at + 4 else 0
                if count < BROKEN or count > min(t.m, t.k):
                    raise PayloadError(f"{self.id}: {count} atoms of a {t.m} x {t.k} matrix")
                at += 4
                stop = at + 4 * max(0, count) * (t.m + t.k)
            floats = _take(body, at, stop).view(torch.float32)
            at = stop
            if t.raw:
                part.copy_(part + floats * weight)
            elif count == BROKEN:
                part.fill_(math.nan)
            elif count:
                u, v = floats.view(count, -1).double().T.split([t.m, t.k])
                value = multiply(u, v).clamp(-TOP, TOP).float().view(-1)[:size]
                part.copy_(part + value * weight)
        if at != body.numel():
            raise PayloadError(f"{self.id}: {at} bytes of atoms; {body.numel()} arrived")

    def _atoms(self, part: Tensor, t: Matrix, noise: Tensor) -> Tensor:
        """The number of atoms, as the bits of a float, and each one's u and v."""
        if not bool(part.isfinite().all()):
            return torch.tensor([BROKEN], dtype=torch.int32, device=part.device).view(torch.float32)
        padded = torch.nn.functional.pad(part.double(), (0, t.m * t.k - part.numel()))
        u, size, v = torch.linalg.svd(padded.view(t.m, t.k), full_matrices=False)
        drawn, had = sample(probabilities(size, self.budget), noise[: size.numel()])
        root = (size[drawn] / had[drawn]).sqrt()
        atoms = torch.cat([u[:, drawn] * root, v[drawn].T * root]).T.float().reshape(-1)
        count = torch.tensor([int(drawn.sum())], dtype=torch.int32, device=part.device)
        return torch.cat([count.view(torch.float32), atoms])


def _take(body: Tensor, start: int, stop: int) -> Tensor:
    if body.numel() < stop:
        raise PayloadError(f"the atoms take at least {stop} bytes; {body.numel()} arrived")
    return body[start:stop]
