"""What sparsifiers share: a body of places and values, and the base of those that send chosen elements as they are.

The body is the number of elements sent (32 bits), their values (`values`: fp32, bf16 or fp16), and their places, as
`indices` says: `gaps` are Golomb coded, about log2(n/k) + 1.5 bits each, and their size depends on the data; `packed`
are fields of ceil(log2 n) bits, which a GPU writes and reads without waiting for the host. A vector that holds NaN or
inf decodes to NaN everywhere: an element that was not sent cannot be told from one that was lost.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, final

import torch

from thinwire.codecs.gaps import pack_gaps, unpack_gaps
from thinwire.codecs.native import local
from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.compressors.scattered import corrected, keep_error_at
from thinwire.core.compressor import Compressor, scheme
from thinwire.core.config import check_choice
from thinwire.core.errors import PayloadError
from thinwire.core.payload import Payload
from thinwire.kernels import selection

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout

Values = Literal["fp32", "bf16", "fp16"]
Indices = Literal["gaps", "packed"]
VALUES = {"fp32": (torch.float32, 0.0), "bf16": (torch.bfloat16, 2.0**-9), "fp16": (torch.float16, None)}
"""The dtype of each form, and its relative error; fp16 has none, since it loses small values entirely."""


class Places(NamedTuple):
    """One way to write ascending places below n: the bytes that `count` of them take at most, `pack`, `unpack`."""

    bound: Callable[[int, int], int]
    pack: Callable[[Tensor, int], Tensor]
    unpack: Callable[[Tensor, int, int, torch.device], Tensor]


class Form(NamedTuple):
    """How values and places are written."""

    values: Values
    indices: Indices


def check_form(name: str, form: Form) -> None:
    """Refuse words that do not name a form."""
    check_choice(name, "values", form.values, tuple(VALUES))
    check_choice(name, "indices", form.indices, tuple(PLACES))


def how_many(ratio: float, k: int | None, n: int) -> int:
    """Elements to keep of n: `k`, or the share `ratio`, and at least one.

    >>> how_many(0.01, None, 1000), how_many(0.01, None, 3), how_many(0.01, 64, 10)
    (10, 1, 10)
    """
    return min(n, max(1, round(ratio * n)) if k is None else k)


def check_count(name: str, ratio: float, k: int | None) -> None:
    """Refuse shares outside 0 .. 1 and counts below 1."""
    if not 0 < ratio <= 1:
        raise ValueError(f"{name}(ratio={ratio}) is outside 0 < ratio <= 1; write {name}(ratio=0.01)")
    if k is not None and k < 1:
        raise ValueError(f"{name}(k={k}): write k >= 1, or leave it out for a share of the elements")


def write_values(values: Tensor, body: Tensor, form: Values) -> None:
    """Fill `body`; finite values beyond the range are saturated, as Cast does."""
    dtype, _ = VALUES[form]
    top = torch.finfo(dtype).max
    body.view(dtype).copy_(torch.where(values.isfinite(), values.clamp(-top, top), values))


def refuse(bad: Tensor, indices: Tensor, values: Tensor, why: str) -> tuple[Tensor, Tensor]:
    """`indices` and `values`, or an error where one is bad.

    On a GPU the host does not wait to know: the value of a bad index becomes NaN, which is noticed before the step.
    """
    if not bad.is_cpu:
        return torch.where(bad, 0, indices), torch.where(bad, torch.nan, values)
    if bool(bad.any()):
        raise PayloadError(why)
    return indices, values


def read_count(body: Tensor, most: int) -> int:
    """The number of elements at the start of a body."""
    count = int(local(body[:4]).view(torch.int32)) if body.numel() >= 4 else -1
    if not 0 <= count <= most:
        raise PayloadError(f"a body of 0 to {most} elements cannot hold {count}")
    return count


def read_head(body: Tensor, most: int) -> tuple[int, float]:
    """The number of elements at the start of a body, and the float32 after it; a GPU is waited for once."""
    head = local(body[:8])
    return read_count(head, most), float(head[4:].view(torch.float32)) if head.numel() == 8 else math.nan


class SparseCompressor(Compressor):
    """Say how many elements there can be (`most`) and which (`pick`); the rest is done here."""

    fixed_size = False

    @property
    @abstractmethod
    def form(self) -> Form:
        """How values and places are written."""

    @abstractmethod
    def most(self, n: int) -> int:
        """The largest number of elements that `pick` takes of n."""

    @abstractmethod
    def pick(self, x: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Places (int64, ascending) and values of the elements to send of a float32 vector."""

    @final
    def nbytes(self, layout: Layout) -> int:
        """The largest number of bytes that there can be."""
        return self._bytes(self.most(layout.numel), layout.numel)

    @final
    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """Pick and write."""
        return self._fill(*self.pick(x.float(), key), layout.numel, body)

    @final
    def write_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, e: Tensor, alpha: float, beta: float
    ) -> int | None:
        """Pick and write, and keep the error: the places need not be read back."""
        wide = x.float()
        indices, values = self.pick_sum(wide, e, alpha, key)
        used = self._fill(indices, values, layout.numel, body)
        dtype, _ = VALUES[self.form.values]
        rounded = body[4 : 4 + indices.numel() * dtype.itemsize].view(dtype).float()
        keep_error_at(e, wide, indices, rounded, beta)
        return used

    def pick_sum(self, x: Tensor, e: Tensor, alpha: float, key: Key) -> tuple[Tensor, Tensor]:
        """`pick` for x + alpha e. A subclass that need not store the sum may replace it."""
        return self.pick(corrected(x, e, alpha), key)

    @final
    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Read and add."""
        selection.add_at(out, *self._read(body, layout.numel), weight)

    @final
    def seal(self, indices: Tensor, values: Tensor, layout: Layout, key: Key, *, checksum: bool = True) -> Payload:
        """A payload of elements that the caller has chosen."""
        payload = Payload.new(self._bytes(indices.numel(), layout.numel), values.device)
        used = self._fill(indices, values, layout.numel, payload.body)
        return payload.trim(used).seal(scheme(self, layout), key, checksum=checksum)

    @final
    def open(self, data: Tensor, layout: Layout, key: Key) -> tuple[Tensor, Tensor]:
        """The places (ascending) and values of a payload, after every check of the payload."""
        payload = Payload(data)
        payload.open(scheme(self, layout), key=key)
        return self._read(payload.aligned().body, layout.numel)

    def _bytes(self, count: int, n: int) -> int:
        return 4 + count * VALUES[self.form.values][0].itemsize + PLACES[self.form.indices].bound(count, n)

    def _fill(self, indices: Tensor, values: Tensor, n: int, body: Tensor) -> int:
        count = indices.numel()
        stop = 4 + count * VALUES[self.form.values][0].itemsize
        places = PLACES[self.form.indices].pack(indices, n)
        body[:4].view(torch.int32).fill_(count)
        write_values(values, body[4:stop], self.form.values)
        body[stop : stop + places.numel()].copy_(places)
        return stop + places.numel()

    def _read(self, body: Tensor, n: int) -> tuple[Tensor, Tensor]:
        dtype, _ = VALUES[self.form.values]
        sized = self.form.indices == "packed" and not body.is_cpu
        here = body if sized else local(body)  # gaps are read there: a GPU is waited for once
        count = self._count(body.numel(), n) if sized else read_count(here, n)
        stop = 4 + count * dtype.itemsize
        if body.numel() < stop:
            raise PayloadError(f"{self.id}: {count} values take {stop} bytes; {body.numel()} arrived")
        indices = PLACES[self.form.indices].unpack(here[stop:], count, n, body.device)
        values = body[4:stop].view(dtype).float()
        if sized:
            return refuse((indices < 0) | (body[:4].view(torch.int32) != count), indices, values, "")
        return indices, values

    def _count(self, size: int, n: int) -> int:
        """How many elements a body of `size` bytes holds where places are packed: the host need not look into it."""
        count = self.most(n)
        if size != self._bytes(count, n):
            count = bisect_left(range(n + 1), size, key=lambda c: self._bytes(c, n))
        if count > n or size != self._bytes(count, n):
            raise PayloadError(f"{self.id}: a body of up to {n} elements cannot have {size} bytes")
        return count


def most_gaps(k: int, n: int) -> int:
    """The most bytes that the gaps of up to `k` places below `n` can take.

    `bound_gaps` holds for exactly k places, and does not always grow with k. A place takes at most 4 bits more than
    the length of n/k, and all places together at most 9/8 of a bit for each of the n.
    """
    return 8 + -(-min(k * (4 + (n // max(1, k) + 1).bit_length()), 9 * n // 8) // 8)


def index_width(n: int) -> int:
    """Bits of a place below n."""
    return max(1, (n - 1).bit_length())


def _unpack(data: Tensor, count: int, n: int, device: torch.device) -> Tensor:
    """Places; on a GPU, where to look at them is to wait, -1 for those that cannot be."""
    indices = unpack_wide(data, count, index_width(n))
    bad = indices >= n
    bad[1:] |= indices.diff() <= 0
    if not bad.is_cpu:
        return torch.where(bad, -1, indices)
    if bool(bad.any()):
        raise PayloadError(f"places are not ascending numbers below {n}")
    return indices


PLACES: dict[str, Places] = {
    "gaps": Places(most_gaps, pack_gaps, lambda data, count, n, device: unpack_gaps(data, count, n, device=device)),
    "packed": Places(
        lambda count, n: wide_bytes(count, index_width(n)),
        lambda indices, n: pack_wide(indices, index_width(n)),
        _unpack,
    ),
}
