"""Top-k whose share of elements shrinks in the first steps: deep gradient compression's warm-up.

Sends what TopK sends. Each quarter of the `warmup` steps sends a quarter of what the one before it did:

    steps 0 .. warmup:  1/4, 1/16, 1/64, 1/256 of the elements, never less than `ratio`;  then `ratio`

The step is the key's, so all ranks, and a run that resumes, agree on it.

>>> c = DgcTopK(ratio=0.001, warmup=400)
>>> [c.ratio_at(step) for step in (0, 100, 200, 300, 400)]
[0.25, 0.0625, 0.015625, 0.00390625, 0.001]

Reference: Lin, Han, Mao, Wang, Dally, "Deep gradient compression: reducing the communication bandwidth for
distributed training", ICLR 2018, arXiv 1712.01887, section 3.3.

Departs from the paper: selection is exact; `SampledTopK` is the paper's selection. Shares are those of a message, not
of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.sparse import Form, Indices, SparseCompressor, Values, check_count, check_form, how_many
from thinwire.compressors.topk import sparse_delta
from thinwire.core.compressor import Biased
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key

STAGES, SHRINK = 4, 0.25


@final
@dataclass(frozen=True)
class DgcTopK(Biased, SparseCompressor):
    """The share `ratio` of the elements after `warmup` steps, and more before."""

    name: ClassVar[str] = "dgc-topk"
    ratio: float = 0.001
    warmup: int = 0
    values: Values = "fp32"
    indices: Indices = "gaps"

    def __post_init__(self) -> None:
        check_count("DgcTopK", self.ratio, None)
        check_form("DgcTopK", self.form)
        if self.warmup < 0:
            raise ValueError(f"DgcTopK(warmup={self.warmup}): write a number of steps, 0 for none")
        object.__setattr__(self, "decodes_any", self.indices == "packed")  # elsewhere facts of the class
        object.__setattr__(self, "fixed_size", self.indices == "packed" and not self.warmup)

    def ratio_at(self, step: int) -> float:
        """The share that is sent in a step."""
        if step >= self.warmup:
            return self.ratio
        return max(self.ratio, SHRINK ** (1 + STAGES * step // self.warmup))

    @property
    def form(self) -> Form:
        """As the fields `values` and `indices` say."""
        return Form(self.values, self.indices)

    def most(self, n: int) -> int:
        """As many as the first step may send."""
        return how_many(self.ratio_at(0), None, n)

    def pick(self, x: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """The largest magnitudes, as many as the step asks for."""
        return selection.top(x, how_many(self.ratio_at(key.step), None, x.numel()))

    def delta(self, d: int) -> float | None:
        """The bound after the warm-up."""
        return sparse_delta(how_many(self.ratio, None, d) / max(1, d), self.values)
