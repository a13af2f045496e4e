"""Block top-k: the k largest magnitudes of every block of 4096 elements, with 12 bits of place each.

Sends, for each block of B elements, k values and k places of ceil(log2 B) bits; sizes are known beforehand. A last
block shorter than k is sent whole.

Bounds: |C(x) - x|^2 <= (1 - k/B) |x|^2, with d in place of B where d < B.
Wire: (32 + 12) 64/4096 = 0.69 bits per element as fp32, 0.44 as bf16 or fp16.

>>> BlockTopK().delta(1 << 20)
0.015625

Reference: Sarfi, Thérien, Lidin, Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025,
arXiv 2508.15706; its code keeps 64 of each chunk of 64 x 64.

Departs from the paper: blocks follow each other in the flat vector instead of tiling matrices; values are not
quantised to 2 bits here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.compressors.scattered import Scattered
from thinwire.compressors.sparse import VALUES, Values, index_width, refuse, write_values
from thinwire.compressors.topk import sparse_delta
from thinwire.core.compressor import Biased
from thinwire.core.config import check_choice
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


@final
@dataclass(frozen=True)
class BlockTopK(Biased, Scattered):
    """The `k` largest of every `block` elements."""

    name: ClassVar[str] = "block-topk"
    decodes_any: ClassVar[bool] = True
    block: int = 4096
    k: int = 64
    values: Values = "fp32"

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.block:
            raise ValueError(f"BlockTopK(block={self.block}, k={self.k}): write 1 <= k <= block")
        check_choice("BlockTopK", "values", self.values, tuple(VALUES))

    def delta(self, d: int) -> float | None:
        """k/B for a full block."""
        return sparse_delta(min(1.0, self.k / max(1, min(d, self.block))), self.values)

    def nbytes(self, layout: Layout) -> int:
        """The bytes of values and places."""
        count = self._count(layout)
        return count * VALUES[self.values][0].itemsize + wide_bytes(count, index_width(self.block))

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write the values, then the places."""
        places, values = selection.top_blocks(x.float(), self.block, self.k)
        stop = values.numel() * VALUES[self.values][0].itemsize
        write_values(values, body[:stop], self.values)
        body[stop:].copy_(pack_wide(places, index_width(self.block)))
        return None

    def read(self, body: Tensor, layout: Layout, key: Key) -> tuple[Tensor, Tensor]:
        """Every block's elements."""
        count, (dtype, _) = self._count(layout), VALUES[self.values]
        stop = count * dtype.itemsize
        places = unpack_wide(body[stop:], count, index_width(self.block))
        indices = torch.arange(count, device=body.device) // self.k * self.block + places
        bad = (places >= self.block) | (indices >= layout.numel)
        values = body[:stop].view(dtype).float()
        return refuse(bad, indices, values, f"{self.id}: a place lies outside its block")

    def _count(self, layout: Layout) -> int:
        return selection.block_entries(layout.numel, self.block, self.k)
