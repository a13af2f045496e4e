"""SparseLoCo's packing: the 64 largest of every 4096 elements, each with 12 bits of place and 2 bits of value.

Sends four float32 and, for each of the k elements kept of a block of B, ceil(log2 B) + 2 bits: 14 x 64 / 4096 = 0.219
bits per element. Values fall into four bins over six standard deviations of all values kept, and decode to the mean
of their bin (thinwire/compressors/sigma_bins.py).

It is biased: use it with error feedback; ErrorFeedback(alpha=0.95, beta=0.95) is the paper's e = 0.95 e + x,
e = e - decoded. A contraction with delta = 0.43 / d at least: k/B of the energy is kept, and the bins keep a part of
that. A vector that holds NaN or inf decodes to NaN everywhere.

>>> from thinwire.core.types import Layout
>>> 8 * SparseLoco().nbytes(Layout.flat(1 << 20)) / (1 << 20)
0.2188720703125

Reference: Sarfi, Therien, Lidin, Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025,
arXiv 2508.15706, and the code of templar (tplr-ai).

Departs from the code: blocks follow each other in the flat vector instead of tiling matrices. Places are packed in
planes of 8 and 4 bits, 1.5 bytes each, as in the code. Sums run in float64 in a fixed order; sigma divides by the
count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.compressors.scattered import Scattered
from thinwire.compressors.sigma_bins import bins_delta, sigma_bins
from thinwire.compressors.sparse import index_width, refuse
from thinwire.core.bitpack import BitPack
from thinwire.core.compressor import Biased
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

BINS, BITS = 4, 2
SIDE = 4 * BINS  # bytes


@final
@dataclass(frozen=True)
class SparseLoco(Biased, Scattered):
    """The `k` largest of every `block` elements, with values of two bits."""

    name: ClassVar[str] = "sparse-loco"
    decodes_any: ClassVar[bool] = True
    block: int = 4096
    k: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.block:
            raise ValueError(f"SparseLoco(block={self.block}, k={self.k}): write 1 <= k <= block")

    def delta(self, d: int) -> float | None:
        """The share of the elements kept, times what four bins keep of them."""
        share = min(1.0, self.k / max(1, min(d, self.block)))
        return share * bins_delta(BINS, selection.block_entries(d, self.block, self.k))

    def nbytes(self, layout: Layout) -> int:
        """The bytes of means, bins and places."""
        count = self._count(layout)
        return SIDE + BitPack().bound(count, BITS) + wide_bytes(count, index_width(self.block))

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Pick, bin and pack."""
        places, values = selection.top_blocks(x.float(), self.block, self.k)
        codes, means = sigma_bins(values, BINS)
        body[:SIDE].view(torch.float32).copy_(means)
        packed = BitPack().pack(codes, BITS)
        body[SIDE:].copy_(torch.cat([packed, pack_wide(places, index_width(self.block))]))
        return None

    def read(self, body: Tensor, layout: Layout, key: Key) -> tuple[Tensor, Tensor]:
        """Every block's elements."""
        count = self._count(layout)
        stop = SIDE + BitPack().bound(count, BITS)
        codes = BitPack().unpack(body[SIDE:stop].contiguous(), count, BITS)
        places = unpack_wide(body[stop:], count, index_width(self.block))
        indices = torch.arange(count, device=body.device) // self.k * self.block + places
        bad = (places >= self.block) | (indices >= layout.numel)
        values = body[:SIDE].view(torch.float32)[codes.long()]
        return refuse(bad, indices, values, f"{self.id}: a place lies outside its block")

    def _count(self, layout: Layout) -> int:
        return selection.block_entries(layout.numel, self.block, self.k)
