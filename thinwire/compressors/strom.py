"""Strom's threshold: +tau or -tau where an element reaches it, nothing elsewhere. Meant for error feedback.

Sends, for each element with |x_i| >= tau, its sign (1 bit) and its place (Golomb coded gaps):

    C(x)_i = tau sgn(x_i) where |x_i| >= tau, else 0

With error feedback an element moves by at most tau per step, so that a `tau` well below the size of the gradients
makes the residual lag behind: watch its norm. There is no bound: an element just under tau is lost entirely, and a
large one nearly so. A vector that holds NaN or inf decodes to NaN everywhere.

>>> import torch
>>> from thinwire.core.types import Layout
>>> c = Strom(tau=0.5)
>>> c.decode(c.encode(torch.tensor([0.7, -0.1, -3.0])), Layout.flat(3))
tensor([ 0.5000,  0.0000, -0.5000])

Reference: Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015.

Departs from the paper: it packs sign and place into one 32-bit word; this is its "entropy-coded gaps" with Golomb's
code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.codecs.gaps import pack_gaps, unpack_gaps
from thinwire.compressors.sparse import most_gaps, read_head
from thinwire.core.bitpack import BitPack
from thinwire.core.compressor import Biased
from thinwire.core.desk import fetched
from thinwire.core.errors import PayloadError
from thinwire.kernels import selection
from thinwire.kernels.spec import packed_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


@final
@dataclass(frozen=True)
class Strom(Biased):
    """The signs of the elements that reach `tau`, decoded to +tau and -tau."""

    name: ClassVar[str] = "strom"
    fixed_size: ClassVar[bool] = False
    tau: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.tau < math.inf or not torch.tensor(self.tau, dtype=torch.float32).isfinite():
            raise ValueError(f"Strom(tau={self.tau}): write a positive threshold, about a standard deviation or more")

    def delta(self, d: int) -> float | None:
        """None, since an element that does not reach tau is lost entirely."""
        return None

    def nbytes(self, layout: Layout) -> int:
        """The bytes of count, signs and gaps if all elements were sent."""
        return 8 + packed_bytes(layout.numel, 1) + most_gaps(layout.numel, layout.numel)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Write tau (NaN if an element is not finite), count, signs, places."""
        indices, values = selection.over(x.float(), self.tau)
        finite = values.isfinite()
        good = bool(fetched(finite.all().view(1))[0])
        if not good:
            indices, values = indices[~finite], values[~finite]
        signs = BitPack().pack((values < 0).to(torch.uint8), 1)
        places = pack_gaps(indices, layout.numel)
        body[:4].view(torch.int32).fill_(indices.numel())
        body[4:8].view(torch.float32).fill_(self.tau if good else math.nan)
        stop = 8 + signs.numel()
        body[8:stop].copy_(signs)
        body[stop : stop + places.numel()].copy_(places)
        return stop + places.numel()

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add tau or -tau at the places."""
        count, tau = read_head(body, layout.numel)
        stop = 8 + packed_bytes(count, 1)
        if body.numel() < stop:
            raise PayloadError(f"{self.id}: {count} signs take {stop} bytes; {body.numel()} arrived")
        if not math.isfinite(tau):
            out.fill_(math.nan)
            return
        signs = BitPack().unpack(body[8:stop], count, 1)
        indices = unpack_gaps(body[stop:], count, layout.numel)
        selection.add_at(out, indices, (1 - 2 * signs.float()) * tau, weight)
