"""Quantised top-k: the k elements of largest magnitude, through another compressor. Needs error feedback.

Sends, of a vector of d elements, k = round(ratio d) values as a compressor C writes a vector of k, and their places
(see thinwire.compressors.sparse):

    T(x)_i = x_i where |x_i| is among the k largest (of equal ones, the first), else 0
    Q(x)   = C of the k values at their places, else 0

Bounds: C is unbiased with omega < 1, or a contraction with delta_C. What it loses lies at other places than what T
loses, so |Q(x) - x|^2 <= (1 - delta_C k/d) |x|^2 on average; for an unbiased C delta_C = 1 - omega.
Wire: the bits of C and log2(d/k) + 1.5 bits for each element sent, with gaps: at 1% and 4 bits .13 bits per element.

>>> import torch
>>> from thinwire.core.types import Key, Layout
>>> c = QuantisedTopK(k=2, compressor=Qsgd(bits=2))
>>> c.decode(c.encode(torch.tensor([1.0, -4.0, 0.5, 4.0]), key=Key(seed=1)), Layout.flat(4))
tensor([ 0., -4.,  0.,  4.])

Reference: Basu, Data, Karakus, Diggavi, "Qsparse-local-SGD: distributed SGD with quantization, sparsification, and
local computations", NeurIPS 2019, arXiv 1906.02367, lemmas 1 and 3.

Departs from the paper: k is taken from what one message carries (a chunk of a bucket), neither from a layer nor from
the model. Where omega >= 1, dividing by 1 + omega (lemma 2) is `Shrunk` around C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.codecs.native import local
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.scattered import Scattered
from thinwire.compressors.sparse import PLACES, Indices, check_count, how_many, refuse
from thinwire.core.compressor import Biased, Compressor
from thinwire.core.config import check_choice
from thinwire.core.errors import PayloadError
from thinwire.core.types import Layout
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key


@final
@dataclass(frozen=True)
class QuantisedTopK(Biased, Scattered):
    """The share `ratio` of the elements, or `k` of them, whose values go through `compressor`."""

    name: ClassVar[str] = "quantised-topk"
    ratio: float = 0.01
    k: int | None = None
    compressor: Compressor = field(default_factory=lambda: Qsgd(bits=4, block=64))
    indices: Indices = "gaps"

    def __post_init__(self) -> None:
        check_count("QuantisedTopK", self.ratio, self.k)
        check_choice("QuantisedTopK", "indices", self.indices, tuple(PLACES))
        if not isinstance(self.compressor, Compressor):
            raise TypeError(f"QuantisedTopK(compressor=...) takes a Compressor; got {self.compressor!r}")
        if not self.compressor.fixed_size or not self.compressor.keeps_scale:
            raise ValueError(
                f"{self.compressor.id} does not write k values into a known number of bytes, with their scale; "
                "write QuantisedTopK(compressor=Qsgd(bits=4, block=64))"
            )
        packed = self.indices == "packed"  # elsewhere these are facts of the class
        object.__setattr__(self, "fixed_size", packed)
        object.__setattr__(self, "decodes_any", packed and self.compressor.decodes_any)

    def most(self, n: int) -> int:
        """The number that is always sent."""
        return how_many(self.ratio, self.k, n)

    def delta(self, d: int) -> float | None:
        """k/d, times what C keeps."""
        kept = self.compressor.delta(self.most(d))
        return None if kept is None else kept * self.most(d) / max(1, d)

    def nbytes(self, layout: Layout) -> int:
        """The bytes of the values, and the most that places can take."""
        k = self.most(layout.numel)
        return self._values(layout) + PLACES[self.indices].bound(k, layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Pick, and write the values and the places."""
        return self._fill(*selection.top(x.float(), self.most(layout.numel)), layout, key, body)

    def write_sum(self, x: Tensor, e: Tensor, alpha: float, layout: Layout, key: Key, body: Tensor) -> int | None:
        """The same for the sum."""
        return self._fill(*selection.top_sum(x, e, alpha, self.most(layout.numel)), layout, key, body)

    def _fill(self, at: Tensor, values: Tensor, layout: Layout, key: Key, body: Tensor) -> int:
        stop = self._values(layout)
        self.compressor.write(values, Layout.flat(at.numel()), key, body[:stop])
        places = PLACES[self.indices].pack(at, layout.numel)
        body[stop : stop + places.numel()].copy_(places)
        return stop + places.numel()

    def read(self, body: Tensor, layout: Layout, key: Key) -> tuple[Tensor, Tensor]:
        """Places, and values as C decodes them."""
        k, stop = self.most(layout.numel), self._values(layout)
        if body.numel() < stop:
            raise PayloadError(f"{self.id}: {k} values take {stop} bytes; {body.numel()} arrived")
        values = torch.zeros(k, device=body.device)
        self.compressor.add(body[:stop], Layout.flat(k), key, values, 1.0)
        here = body[stop:] if self.indices == "packed" else local(body[stop:])  # gaps are read on the host
        at = PLACES[self.indices].unpack(here, k, layout.numel, body.device)
        if not at.is_cpu:  # places that cannot be are -1
            at, values = refuse(at < 0, at, values, "")
        return at, values

    def _values(self, layout: Layout) -> int:
        return self.compressor.nbytes(Layout.flat(self.most(layout.numel)))
