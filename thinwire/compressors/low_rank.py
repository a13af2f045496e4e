"""Low rank: every matrix as a product of two thin ones, found by one step of power iteration from random vectors.

Sends, for a tensor seen as a matrix M (m x k: first dimension x the rest), P^ (m x r) and Q (k x r) in float32:

    P = M Q_0,    P^ = P with orthonormal columns,    Q = M' P^,    M^ = P^ Q'

so that M^ is M projected on r directions: |M^ - M| <= |M|. Q_0 is uniform on [-1, 1), from the key. Vectors, and
matrices that would shrink by less than `least`, are sent as they are. Wire: 32 r (m + k) bits per matrix.
The exchange `PowerSgd` does this with the mean of all ranks' matrices, and starts from the last Q. Used alone, as
here, it shows what one rank loses without a warm start.

Reference: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
optimization", NeurIPS 2019, arXiv 1905.13727, algorithm 1.

Departs from the paper: Q_0 is uniform, not normal, so that no function is needed that machines round differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

import torch

from thinwire import kernels
from thinwire.core.compressor import Biased
from thinwire.kernels.hadamard import halving_sum
from thinwire.kernels.spec import TILE, TOP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from thinwire.core.types import Key, Layout

DEPENDENT = 2.0**-80  # a column of which a smaller share of its square remains depends on those before it


class Piece(NamedTuple):
    """Elements `start` to `stop` of a vector: an m x k matrix of `rank`, or (rank 0) elements sent as they are."""

    start: int
    stop: int
    m: int
    k: int
    rank: int

    @property
    def floats(self) -> int:
        """How many floats are sent for it."""
        return self.rank * (self.m + self.k) or self.stop - self.start


@final
@dataclass(frozen=True)
class LowRank(Biased):
    """Rank `rank`, where that makes a matrix smaller by a factor of at least `least`."""

    name: ClassVar[str] = "low-rank"
    decodes_any: ClassVar[bool] = True
    rank: int = 2
    least: float = 2.0

    def __post_init__(self) -> None:
        check_rank("LowRank", self.rank, self.least)

    def delta(self, d: int) -> float | None:
        """None, since the error depends on the singular values."""
        return None

    def nbytes(self, layout: Layout) -> int:
        """Four bytes per float of the factors."""
        return 4 * sum(piece.floats for piece in self.pieces(layout))

    def pieces(self, layout: Layout) -> list[Piece]:
        """The matrices and the rest, in order."""
        return pieces(layout, self.rank, self.least)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write factors or elements, piece after piece."""
        wide, floats = x.float(), body.view(torch.float32)
        for piece, to in self._bodies(floats, layout):
            part = wide[piece.start : piece.stop]
            if not piece.rank:
                to.copy_(part)
                continue
            matrix = part.view(piece.m, piece.k).double()
            start = draw(key, piece, layout.numel, x).double()
            p = orthonormal(torch.stack([_rows_times(matrix, column) for column in start.unbind(1)], 1)).float()
            q = torch.stack([_rows_times(matrix.T, column) for column in p.double().unbind(1)], 1)
            q = torch.where(q.isfinite().all(), q.clamp(-TOP, TOP), torch.nan)
            to.copy_(torch.cat([torch.nan_to_num(p).flatten(), q.float().flatten()]))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add the products."""
        for piece, sent in self._bodies(body.view(torch.float32), layout):
            value = sent
            if piece.rank:
                p, q = sent.split([piece.m * piece.rank, piece.k * piece.rank])
                product = multiply(p.view(piece.m, -1).double(), q.view(piece.k, -1).double())
                value = product.clamp(-TOP, TOP).float().view(-1)
            part = out[piece.start : piece.stop]
            part.copy_(part + value * weight)

    def _bodies(self, floats: Tensor, layout: Layout) -> Iterator[tuple[Piece, Tensor]]:
        at = 0
        for piece in self.pieces(layout):
            yield piece, floats[at : at + piece.floats]
            at += piece.floats


def check_rank(name: str, rank: int, least: float) -> None:
    """Refuse a `rank` or `least` below 1."""
    if not isinstance(rank, int) or rank < 1 or least < 1:
        raise ValueError(f"{name}(rank={rank}, least={least}): write rank >= 1 and least >= 1")


def pieces(layout: Layout, rank: int, least: float) -> list[Piece]:
    """The tensors as matrices of rank `rank`; a tensor that this would not shrink by `least` stays as it is.

    >>> from thinwire.core.types import Layout
    >>> pieces(Layout(("w", "b"), ((64, 3, 3), (64,))), rank=2, least=2.0)
    [Piece(start=0, stop=576, m=64, k=9, rank=2), Piece(start=576, stop=640, m=64, k=1, rank=0)]
    """
    found = []
    for start, size, shape in zip(layout.offsets, layout.sizes, layout.shapes, strict=False):
        if size:
            m = shape[0] if shape else 1
            k = size // m
            small = rank * (m + k) * least <= size and rank <= min(m, k)
            found.append(Piece(start, start + size, m, k, rank if small else 0))
    return found


def draw(key: Key, piece: Piece, n: int, like: Tensor) -> Tensor:
    """A random Q (k x r), uniform on [-1, 1), float32, the same on every machine and rank.

    They are the noise of a vector of `n` elements where the matrix begins: whole tiles are drawn, and the last one as
    far as the vector goes.
    """
    before = piece.start // TILE * TILE
    begin, stop = piece.start - before, piece.start - before + piece.k * piece.rank
    key = key.fold(rank=0, offset=key.offset + before)
    u = kernels.select(like).noise(key, min(n - before, -(-stop // TILE) * TILE)).to(like.device)
    return ((u[begin:stop] >> 8).float() * 2.0**-23 - 1.0).view(piece.k, piece.rank)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> in an order that is the same everywhere."""
    product = a * b
    size = 1 << max(0, product.numel() - 1).bit_length()
    return halving_sum(torch.nn.functional.pad(product, (0, size - product.numel())).view(1, -1))[0]


def orthonormal(p: Tensor) -> Tensor:
    """The columns of `p` (m x r) made orthonormal, float64, in a fixed order; a dependent one becomes 0.

    Gram-Schmidt, each column twice; sums by halving, so that every machine finds the same bits.
    """
    done: list[Tensor] = []
    for column in p.double().unbind(1):
        v, before = column, dot(column, column)
        for _ in range(2):
            for c in done:
                v = v - c * dot(c, v)
        square = dot(v, v)
        done.append(torch.where(square > before * DEPENDENT, v / square.sqrt(), v * 0))
    return torch.stack(done, 1)


def multiply(p: Tensor, q: Tensor) -> Tensor:
    """P Q' column by column: one rounding per operation, so the same bits on every machine."""
    total = p[:, :1] * q[:, 0]
    for j in range(1, p.shape[1]):
        total += p[:, j : j + 1] * q[:, j]
    return total


def _rows_times(matrix: Tensor, v: Tensor) -> Tensor:
    """M v, summed by halving."""
    size = 1 << math.ceil(math.log2(max(1, matrix.shape[1])))
    return halving_sum(torch.nn.functional.pad(matrix * v, (0, size - matrix.shape[1])))
