"""Whether a payload's checksum is wrong, in Triton: one number, left on the device for whoever asks later."""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels import spec
from thinwire.kernels.gpu.sums import added, finish
from thinwire.kernels.gpu.tiles import keyed

CHECKED = tl.constexpr(spec.CHECKED)


@triton.jit(do_not_specialize=["count"])
def wrong(data, partial, count, out, STEP: tl.constexpr):
    """1 if the checksum of the header, and of a body with these partial sums if the flag says so, is not as stored."""
    place = tl.arange(0, 8)
    word = tl.load(data + place)
    covers = tl.sum(tl.where(place == 1, (word >> 8) & CHECKED, 0), axis=0)
    head = tl.sum(tl.where(place < 7, keyed(word, place), 0), axis=0)
    body = added(partial, count, STEP)
    stored = tl.sum(tl.where(place == 7, word, 0), axis=0)
    tl.store(out, (finish(head + tl.where(covers != 0, body, 0)) != stored).to(tl.int32))
