"""Sampled top-k: about k of the largest magnitudes, over a threshold that a sample of the vector sets.

Sends what TopK sends, for between 0.8 k and 1.3 k elements:

    tau = the k'-th largest magnitude of a strided sample, k' in proportion; the key sets where the sample starts
    fewer than 0.8 k reach tau: tau = 0.8 tau, at most 10 times; then the k largest of all are sent
    more than 1.3 k reach it: the k largest of those are sent

What is sent is always the m largest for some m >= 0.8 k, so |C(x) - x|^2 <= (1 - 0.8 k/d) |x|^2.

Reference: Lin, Han, Mao, Wang, Dally, "Deep gradient compression", ICLR 2018, arXiv 1712.01887, section 5 and the
authors' code for the limits.

Departs from the paper: after 10 tries it selects exactly. TopK's own selection takes one pass over memory, so
sampling gains no time on a CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.sparse import Form, Indices, SparseCompressor, Values, check_count, check_form, how_many
from thinwire.compressors.topk import sparse_delta
from thinwire.core.compressor import Biased
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key

LOW, HIGH, TRIES = 0.8, 1.3, 10


@final
@dataclass(frozen=True)
class SampledTopK(Biased, SparseCompressor):
    """About the share `ratio` of the elements, or about `k` of them, from a sample of the share `sample`."""

    name: ClassVar[str] = "sampled-topk"
    ratio: float = 0.01
    k: int | None = None
    sample: float = 0.01
    values: Values = "fp32"
    indices: Indices = "gaps"

    def __post_init__(self) -> None:
        check_count("SampledTopK", self.ratio, self.k)
        check_form("SampledTopK", self.form)
        if not 0 < self.sample <= 1:
            raise ValueError(f"SampledTopK(sample={self.sample}) is outside 0 < sample <= 1; write sample=0.01")

    @property
    def form(self) -> Form:
        """As the fields `values` and `indices` say."""
        return Form(self.values, self.indices)

    def most(self, n: int) -> int:
        """1.3 k."""
        return min(n, int(HIGH * how_many(self.ratio, self.k, n)))

    def pick(self, x: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """The elements that reach the sampled threshold, if their number is in range."""
        n = x.numel()
        k = how_many(self.ratio, self.k, n)
        if not n:
            return selection.top(x, 0)
        tau = selection.sampled_threshold(x, k, key, self.sample)
        for _ in range(1 + TRIES if math.isfinite(tau) else 0):
            indices, values = selection.over(x, tau)
            if indices.numel() >= math.ceil(LOW * k):
                if indices.numel() <= self.most(n):
                    return indices, values
                best, values = selection.top(values, k)
                return indices[best], values
            tau *= LOW
        return selection.top(x, k)

    def delta(self, d: int) -> float | None:
        """0.8 k/d."""
        return sparse_delta(math.ceil(LOW * how_many(self.ratio, self.k, d)) / max(1, d), self.values)
