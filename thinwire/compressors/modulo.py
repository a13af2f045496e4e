"""Modulo: the place of a number on a circle, rounded to one of L points. The receiver must know roughly where it is.

Sends b bits per element and 64 bits of checksum. With L = 2^b points on a circle of length B, delta = 1 / (2 L):

    B = 2 theta / (1 - 2 delta),    step = B / L,    k = round(x / step),    q = k mod L

is `unwrap`. It finds the sender's k, and |k step - x| <= delta B, however large x is. If y is farther away it may
find another k, a multiple of L off; the checksum is of the sender's k, so that the receiver notices.

`decode` alone gives q step, in [0, B), which is not an estimate of x. So Modulo is not part of the battery, where
decoded vectors are near the encoded ones. It is neither unbiased nor a contraction, and what is decoded does not grow
with x.

`rounding="shared"`: the grid moves by a random part of a step, drawn anew each step and the same on every rank. Then
two numbers y and x are |x - y| / step points apart on average, however near they are. On a grid that does not move,
numbers in one cell would round to the same point for ever.

>>> modulo = Modulo(bits=1)
>>> modulo.span, modulo.error
(4.0, 1.0)

Reference: Lu, De Sa, "Moniqua: modulo quantized communication in decentralized SGD", ICML 2020, arXiv 2002.11787.

Departs from the paper: the points are q B / L, on a circle; the checksum is of the indices k, element by element, so
that it can be computed from what was unwrapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch

from thinwire import kernels
from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.core.compressor import Biased, scheme
from thinwire.core.config import check_choice
from thinwire.core.desk import fetched
from thinwire.core.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.payload import Payload
    from thinwire.core.types import Key, Layout

CHECKSUM = 8  # bytes before the codes
NOT_FINITE = -1  # in place of a checksum, which is never negative
LARGEST = 2.0**52  # indices from here on are not exact in float64


@final
@dataclass(frozen=True)
class Modulo(Biased):
    """`bits` per element, for numbers nearer to each other than `theta`."""

    name: ClassVar[str] = "modulo"
    keeps_scale: ClassVar[bool] = False
    bits: int = 8
    theta: float = 1.0
    rounding: Literal["nearest", "shared"] = "nearest"

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise ValueError(f"Modulo(bits={self.bits}) is outside 1 to 16; write Modulo(bits=8)")
        if not 1e-30 < self.theta < 1e30:
            raise ValueError(f"Modulo(theta={self.theta}): write how far apart numbers may be, such as theta=1.0")
        check_choice("Modulo", "rounding", self.rounding, ("nearest", "shared"))

    @property
    def levels(self) -> int:
        """L, the number of points."""
        return 1 << self.bits

    @property
    def step(self) -> float:
        """The distance between two neighbouring points."""
        return 2 * self.theta / (self.levels - 1)

    @property
    def span(self) -> float:
        """B, the length of the circle."""
        return self.step * self.levels

    @property
    def error(self) -> float:
        """delta B: how far the nearest point may be."""
        return self.step / 2

    def delta(self, d: int) -> float | None:
        """None, since it is not a contraction."""
        return None

    def nbytes(self, layout: Layout) -> int:
        """The bytes of the checksum and the codes."""
        return CHECKSUM + wide_bytes(layout.numel, self.bits)

    def indices(self, x: Tensor, key: Key) -> Tensor:
        """k, whole numbers in float64; NaN and inf stay as they are."""
        return self._places(x, key).round()

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
        """The codes of k and their checksum; a mark in its place if an element is not finite or a k not exact."""
        k = self.indices(x, key)
        good = (k.abs() < LARGEST).all()
        whole = torch.where(good, k, 0.0).to(torch.int64)
        body[:CHECKSUM].view(torch.int64).copy_(torch.where(good, checksum(whole), NOT_FINITE))
        body[CHECKSUM:].copy_(pack_wide(whole & (self.levels - 1), self.bits))
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add q step, which lies in [0, B)."""
        q = unpack_wide(body[CHECKSUM:], layout.numel, self.bits).double() - self._shift(out, key)
        value = torch.where(_sent(body) == NOT_FINITE, torch.nan, q.remainder(self.levels) * self.step)
        out.copy_(out + value.float() * weight)

    @torch.no_grad()
    def unwrap(self, payload: Payload, layout: Layout, x: Tensor, key: Key) -> Tensor | None:
        """The k nearest to x / step that fit the codes; None where they are not the sender's.

        The result is NaN where the sender's numbers, or those in `x`, are not finite.
        """
        payload.open(scheme(self, layout), key=key)
        body = payload.aligned().body
        if body.numel() != self.nbytes(layout):
            raise PayloadError(f"{self.id} has {self.nbytes(layout)} body bytes; {body.numel()} arrived")
        q = unpack_wide(body[CHECKSUM:], layout.numel, self.bits).double()
        turns = ((self._places(x, key) - q) / self.levels).round()
        k = q + turns * self.levels
        known, exact = (_sent(body) != NOT_FINITE) & k.isfinite().all(), (k.abs() < LARGEST).all()
        right = exact & (checksum(torch.where(exact, k, 0.0).to(torch.int64)) == _sent(body))
        there, good = fetched(torch.stack([known.view(()), right.view(())]))  # a GPU is waited for once
        if not there:
            return torch.full_like(k, torch.nan)
        return k if good else None

    def _places(self, x: Tensor, key: Key) -> Tensor:
        """Where x lies on the grid, in steps. float32 could not hold both 100 and a hundredth of a step."""
        return x.double() / self.step + self._shift(x, key)

    def _shift(self, like: Tensor, key: Key) -> Tensor | float:
        """By how much of a step the grid is moved, -1/2 to 1/2: the same on every rank."""
        if self.rounding == "nearest":
            return 0.0
        words = kernels.select(like).noise(key.fold(rank=0), like.numel())
        return words.to(like.device).double() * 2.0**-32 - 0.5


def checksum(k: Tensor) -> Tensor:
    """A checksum of 63 bits of whole numbers: their sum modulo 2^63, each multiplied by an odd number of its own.

    Numbers that are wrong by multiples of 2^b go unnoticed with probability 2^(b-63).

    >>> checksum(torch.tensor([3, -1])) == checksum(torch.tensor([3 + 256, -1 - 256]))
    tensor(False)
    """
    c = torch.arange(1, k.numel() + 1, device=k.device) * -7046029254386353131  # from the golden ratio
    c ^= (c >> 29) & 0x7FFFFFFFF
    c *= -4658895280553007687
    c ^= (c >> 32) & 0xFFFFFFFF
    return (k * (c | 1)).sum() & 0x7FFFFFFFFFFFFFFF


def _sent(body: Tensor) -> Tensor:
    return body[:CHECKSUM].view(torch.int64)
