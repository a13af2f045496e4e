"""Elias' codes of whole numbers, and QSGD's two ways to send levels with them.

Bits of k >= 1, with n = floor(log2 k):

    gamma    n zeros, then k in binary: 2n + 1
    delta    gamma(n + 1), then k without its first bit: n + 2 floor(log2(n + 1)) + 1
    omega    k in binary, preceded by its length less one in binary, and so on down to 1; a zero ends the code

Dense: Elias(|q| + 1) of every level q, and a sign where q is not zero. Sparse: for every level that is not zero,
Elias(distance from the last one), a sign, Elias(|q|); the distance to the end closes the list.
Symbols are levels 0, -1, 1, -2, ... as 0, 1, 2, 3, ...; unsigned symbols go through too, at a few bits more.

>>> import torch
>>> EliasDense().pack(torch.tensor([0, 0, 2, 0, 1], dtype=torch.uint8), width=2)  # 0 0 100'0 0 100'1
tensor([33, 32], dtype=torch.uint8)
>>> EliasSparse().pack(torch.tensor([0, 0, 2, 0, 1], dtype=torch.uint8), width=2)  # 110'0'0 100'1'0 0
tensor([196, 128], dtype=torch.uint8)

Reference: Elias, "Universal codeword sets and representations of the integers", 1975; Alistarh et al., arXiv
1610.02132, section 3.2 and appendix A for the two forms.

Departs from the paper: QSGD gives its dense form for s = sqrt(n); here it works for any s. The paper does not say how
a receiver of its sparse form finds the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch

from thinwire.codecs.native import ELIAS, check, codes, fit, local
from thinwire.core.codec import Codec
from thinwire.core.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

Code = Literal["gamma", "delta", "omega"]
LIMIT = 2**32 - 2  # elements: distances fit 32 bits


def pack_numbers(k: Tensor, code: Code) -> Tensor:
    """Bytes for whole numbers 1 .. 2^32 - 1, int64.

    >>> pack_numbers(torch.tensor([9]), "gamma")  # 0001001
    tensor([18], dtype=torch.uint8)
    """
    wide = local(k).to(torch.int64)
    if wide.numel() and not 1 <= int(wide.min()) <= int(wide.max()) < 2**32:
        raise ValueError("Elias' codes take whole numbers from 1 to 2^32 - 1; write k + 1 to send zeros")
    out = torch.empty(8 * wide.numel(), dtype=torch.uint8)
    numbers = wide.to(torch.uint32)
    used = codes().numbers_encode(_number(code), numbers.data_ptr(), numbers.numel(), out.data_ptr())
    return out[:used].clone().to(k.device)


def unpack_numbers(data: Tensor, n: int, code: Code) -> Tensor:
    """The `n` numbers of `data`, int64."""
    bytes_, out = local(data), torch.empty(n, dtype=torch.uint32)
    check(code, codes().numbers_decode(_number(code), bytes_.data_ptr(), bytes_.numel(), out.data_ptr(), n))
    return out.to(torch.int64).to(data.device)


@final
@dataclass(frozen=True)
class EliasDense(Codec):
    """Every level, one after the other."""

    name: ClassVar[str] = "elias-dense"
    code: Code = "omega"

    def __post_init__(self) -> None:
        _number(self.code)

    def bound(self, n: int, width: int) -> int:
        """The bytes if every level had the longest code."""
        return -(-n * (longest(self.code, (1 << width - 1) + 1) + 1) // 8)

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols`."""
        return _pack(self, symbols, width, sparse=False)

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`."""
        return _unpack(self, data, n, width, sparse=False)


@final
@dataclass(frozen=True)
class EliasSparse(Codec):
    """The levels that are not zero, with their distances."""

    name: ClassVar[str] = "elias-sparse"
    code: Code = "omega"

    def __post_init__(self) -> None:
        _number(self.code)

    def bound(self, n: int, width: int) -> int:
        """The bytes if every level had the longest code and distance 1: longer distances cost less."""
        return -(-(n * (longest(self.code, 1 << width - 1) + 2) + 64) // 8) if n else 0

    def pack(self, symbols: Tensor, width: int) -> Tensor:
        """Bytes for `symbols`."""
        return _pack(self, symbols, width, sparse=True)

    def unpack(self, data: Tensor, n: int, width: int) -> Tensor:
        """The `n` symbols of `data`."""
        return _unpack(self, data, n, width, sparse=True)


@lru_cache(maxsize=256)
def longest(code: Code, k: int) -> int:
    """Bits of the longest code of 1 .. k."""
    return max(8 * pack_numbers(torch.full((8,), i), code).numel() // 8 for i in range(1, k + 1))


def _number(code: Code) -> int:
    if code not in ELIAS:
        raise ValueError(f"no Elias code is called {code!r}; write code='gamma', 'delta' or 'omega'")
    return ELIAS[code]


def _pack(codec: EliasDense | EliasSparse, symbols: Tensor, width: int, *, sparse: bool) -> Tensor:
    s = fit(codec.id, symbols, width)
    n = _check_length(codec, s.numel())
    out = torch.empty(codec.bound(n, width), dtype=torch.uint8)
    if n:
        out = out[: codes().levels_encode(ELIAS[codec.code], sparse, s.data_ptr(), n, out.data_ptr())]
    return out.to(symbols.device)


def _unpack(codec: EliasDense | EliasSparse, data: Tensor, n: int, width: int, *, sparse: bool) -> Tensor:
    bytes_, out = local(data), torch.empty(_check_length(codec, n), dtype=torch.uint8)
    if n == 0 and bytes_.numel():
        raise PayloadError(f"{codec.id}: {bytes_.numel()} bytes for no symbols")
    if n:
        arguments = (bytes_.data_ptr(), bytes_.numel(), out.data_ptr(), n, 1 << width)
        check(codec.id, codes().levels_decode(ELIAS[codec.code], sparse, *arguments))
    return out.to(data.device)


def _check_length(codec: Codec, n: int) -> int:
    if n > LIMIT:
        raise ValueError(f"{codec.id} codes at most {LIMIT} symbols; got {n}: use smaller buckets")
    return n
