"""Random-k: k elements at places that all ranks draw alike, so that only values travel and may be summed.

Sends k = round(ratio d) values, 32 bits each, at a subset S of the places that follows from the seed, the step, the
bucket and the chunk, not from the rank:

    C(x)_i = (d/k) x_i where i in S, else 0        scaled=True: unbiased
    C(x)_i = x_i where i in S, else 0              scaled=False: for error feedback

Bounds: scaled E|C(x) - x|^2 = (d/k - 1) |x|^2; unscaled E|C(x) - x|^2 = (1 - k/d) |x|^2. Both hold with equality.
Linear: works on AllReduce. A vector that holds NaN or inf decodes to NaN everywhere.

>>> RandomK(ratio=0.1).omega(1000), RandomK(ratio=0.1, scaled=False).delta(1000)
(9.0, 0.1)

Reference: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018, arXiv 1809.07599, definition 2.1.
Konecny, McMahan, Yu, Richtarik, Suresh, Bacon, "Federated learning: strategies for improving communication
efficiency", 2016, arXiv 1610.05492, for masks that follow from a seed.

Departs from the paper: ranks share the subset; the paper draws one per rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.compressors.sparse import check_count, how_many
from thinwire.core.compressor import Compressor
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


@final
@dataclass(frozen=True)
class RandomK(Compressor):
    """The share `ratio` of the elements, or `k` of them; `scaled` up by d/k to be right on average."""

    name: ClassVar[str] = "randomk"
    linear: ClassVar[bool] = True
    ratio: float = 0.01
    k: int | None = None
    scaled: bool = True

    def __post_init__(self) -> None:
        check_count("RandomK", self.ratio, self.k)

    def count(self, n: int) -> int:
        """How many of n elements are kept."""
        return how_many(self.ratio, self.k, n)

    @property
    def unbiased(self) -> bool:
        """Whether values are scaled."""
        return self.scaled

    def omega(self, d: int) -> float | None:
        """d/k - 1 where scaled."""
        return d / max(1, self.count(d)) - 1 if self.scaled else None

    def delta(self, d: int) -> float | None:
        """k/d where values are not scaled; where they are, a contraction if omega < 1."""
        share = self.count(d) / max(1, d)
        if self.scaled:
            return 2 - 1 / share if share > 0.5 else None
        return share

    def nbytes(self, layout: Layout) -> int:
        """Four bytes per element kept."""
        return 4 * self.count(layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the values at the common places."""
        picked = x[self._places(layout, key, x.device)].float()
        body.view(torch.float32).copy_(selection.spoilt(x, picked))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Draw the places again, scale (saturated at the largest float) and add."""
        values = body.view(torch.float32)
        if self.scaled:
            top = torch.finfo(torch.float32).max
            scale = layout.numel / self.count(layout.numel)
            wide = values.double() * scale
            values = torch.where(values.isfinite(), wide.clamp(-top, top), wide).float()
        selection.add_at(out, self._places(layout, key, body.device), values, weight)

    def _places(self, layout: Layout, key: Key, device: torch.device) -> Tensor:
        return selection.subset(key.fold(rank=0), layout.numel, self.count(layout.numel), device)
