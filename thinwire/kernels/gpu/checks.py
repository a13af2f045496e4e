"""Checksums of several payloads, in Triton: written, or whether they are wrong, left on the device for whoever asks later.

Up to eight payloads share two launches, because a host that trains takes longer to launch than a GPU to add.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels import spec
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.sums import finish
from thinwire.kernels.gpu.tiles import keyed

CHECKED = tl.constexpr(spec.CHECKED)
MOST = 8  # payloads in one launch
WORDS = 2048  # summed per program


@triton.jit
def some(data, n, totals, which, part, SIZE: tl.constexpr):
    """Add to the payload's total the words `part` SIZE, ... of its body; the last word may end after `n` bytes."""
    at = part.to(tl.int64) * SIZE + tl.arange(0, SIZE)
    body = at >= 8
    total = tl.sum(keyed(tl.load(data + at, mask=body & (4 * at + 4 <= n), other=0), at), axis=0)
    last = n // 4
    if (part == 0) & (n % 4 != 0):
        byte = tl.arange(0, 4)
        there = data.to(tl.pointer_type(tl.uint8)) + last * 4 + byte
        rest = tl.load(there, mask=byte < n % 4, other=0).to(tl.int32)
        total += tl.sum(keyed(rest << (8 * byte), byte * 0 + last), axis=0)
    if part * SIZE < last + 1:
        tl.atomic_add(totals + which, total, sem="relaxed")


@Ready
@triton.jit(do_not_specialize=["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"])
def sums(d0, d1, d2, d3, d4, d5, d6, d7, n0, n1, n2, n3, n4, n5, n6, n7, totals, SIZE: tl.constexpr):
    """The sums over the bodies of payloads, added to `totals`: a row of programs for each."""
    which, part = tl.program_id(1), tl.program_id(0)
    data, sizes = (d0, d1, d2, d3, d4, d5, d6, d7), (n0, n1, n2, n3, n4, n5, n6, n7)
    for i in tl.static_range(8):
        if which == i:
            some(data[i], sizes[i], totals, which, part, SIZE)


@triton.jit
def one_of(d0, d1, d2, d3, d4, d5, d6, d7):
    """Which payload is this program's, and its words: a pointer is chosen, so that what follows is compiled once."""
    which = tl.program_id(0)
    others = (d1, d2, d3, d4, d5, d6, d7)
    data = d0
    for i in tl.static_range(7):
        data = tl.where(which == i + 1, others[i], data)
    return which, data


@Ready
@triton.jit
def seals(d0, d1, d2, d3, d4, d5, d6, d7, heads, totals):
    """The headers of payloads whose bodies `sums` has added up; each has eight words of `heads`, the last of them 0."""
    which, data = one_of(d0, d1, d2, d3, d4, d5, d6, d7)
    place = tl.arange(0, 8)
    word = tl.load(heads + which * 8 + place)
    s = tl.sum(keyed(word, place), axis=0) + tl.load(totals + which)  # the last word is 0
    tl.store(data + place, tl.where(place == 7, finish(s), word))


@Ready
@triton.jit
def verdicts(d0, d1, d2, d3, d4, d5, d6, d7, totals, out):
    """1 for each whose checksum of the header, and of the body if the flag says so, is not as stored."""
    which, data = one_of(d0, d1, d2, d3, d4, d5, d6, d7)
    place = tl.arange(0, 8)
    word = tl.load(data + place)
    covers = tl.sum(tl.where(place == 1, (word >> 8) & CHECKED, 0), axis=0)
    head = tl.sum(tl.where(place < 7, keyed(word, place), 0), axis=0)
    stored = tl.sum(tl.where(place == 7, word, 0), axis=0)
    body = tl.load(totals + which)
    tl.store(out + which, (finish(head + tl.where(covers != 0, body, 0)) != stored).to(tl.int64))
