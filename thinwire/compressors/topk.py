"""Top-k: the k elements of largest magnitude, as they are; the rest is zero. Needs error feedback.

Sends, of a vector of d elements, k = round(ratio d) values and their places (see thinwire.compressors.sparse):

    C(x)_i = x_i where |x_i| is among the k largest (of equal ones, the first), else 0

Bounds: |C(x) - x|^2 <= (1 - k/d) |x|^2, attained where all |x_i| are equal; a Gaussian leaves .918 at
1%, .558 at 10%.
Wire: 32 + log2(d/k) + 1.5 bits for each element sent, with fp32 values and gaps.

>>> import torch
>>> from thinwire.core.types import Layout
>>> c = TopK(k=2)
>>> c.decode(c.encode(torch.tensor([1.0, -4.0, 0.5, 3.0])), Layout.flat(4))
tensor([ 0., -4.,  0.,  3.])

Reference: Aji, Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017, arXiv 1704.05021.
Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018, arXiv 1809.07599, for the bound.

Departs from the paper: k is taken from what one message carries (a chunk of a bucket), neither from a layer nor from
the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.sparse import (
    VALUES,
    Form,
    Indices,
    SparseCompressor,
    Values,
    check_count,
    check_form,
    how_many,
)
from thinwire.core.compressor import Biased
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key


@final
@dataclass(frozen=True)
class TopK(Biased, SparseCompressor):
    """The share `ratio` of the elements, or `k` of them."""

    name: ClassVar[str] = "topk"
    ratio: float = 0.01
    k: int | None = None
    values: Values = "fp32"
    indices: Indices = "gaps"

    def __post_init__(self) -> None:
        check_count("TopK", self.ratio, self.k)
        check_form("TopK", self.form)
        for fact in ("fixed_size", "decodes_any"):  # elsewhere facts of the class
            object.__setattr__(self, fact, self.indices == "packed")

    @property
    def form(self) -> Form:
        """As the fields `values` and `indices` say."""
        return Form(self.values, self.indices)

    def most(self, n: int) -> int:
        """The number that is always sent."""
        return how_many(self.ratio, self.k, n)

    def pick(self, x: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """The largest magnitudes."""
        return selection.top(x, self.most(x.numel()))

    def pick_sum(self, x: Tensor, e: Tensor, alpha: float, key: Key) -> tuple[Tensor, Tensor]:
        """The largest magnitudes of the sum."""
        return selection.top_sum(x, e, alpha, self.most(x.numel()))

    def delta(self, d: int) -> float | None:
        """k/d, times the share that survives the rounding of the values."""
        return sparse_delta(self.most(d) / max(1, d), self.values)


def sparse_delta(share: float, values: Values) -> float | None:
    """The delta of keeping the largest `share` of the elements, written as `values`."""
    error = VALUES[values][1]
    return None if error is None else share * (1 - error**2)
