"""The checksum of a payload: a sum over its words, so that any pass that holds the words can make it.

With the payload as little-endian 32-bit words w_i, i counted from its first byte and the end padded with zero bytes,

    t_i = (i + 1) * WEYL mod 2^32,    k_i = t_i xor (t_i >> FOLD),    S = sum of w_i * k_i mod 2^64,

and the checksum is the high half of (S xor (S >> 32)) * MIX mod 2^64. Word 7 is the checksum itself and is left out;
where the header's flag CHECKED is not set, words 0 to 6 are all that it covers.

Products of 32-bit numbers are exact in 64 bits and k_i is not 0 for i < 2^32 - 1, so that S changes with any one
word. With keys k_i drawn at random no change of a message would leave S as it was with a probability above 2^-32
(multilinear hashing: Carter and Wegman, "Universal classes of hash functions", 1979). The keys are not linear in i,
because sums with linear keys do not see that equal words change places in pairs.

This file is the definition; the other tiers have the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.kernels.spec import COVERED, HEADER

if TYPE_CHECKING:
    from torch import Tensor

WEYL = 0x9E3779B1
FOLD = 15
MIX = 0x9E3779B97F4A7C15

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def words(data: Tensor) -> Tensor:
    """Bytes as 32-bit words in int64, the last one padded with zeros.

    >>> words(torch.tensor([1, 0, 0, 0, 2], dtype=torch.uint8))
    tensor([1, 2])
    """
    padded = data.new_zeros(-(-data.numel() // 4) * 4)
    padded[: data.numel()] = data
    return padded.view(torch.int32).to(torch.int64) & MASK32


def keys(first: int, count: int, device: torch.device | None = None) -> Tensor:
    """k_i of `count` words from index `first` on, in int64.

    >>> [hex(k) for k in keys(0, 2).tolist()]
    ['0x9e3645df', '0x3c6e8bbf']
    """
    index = torch.arange(first + 1, first + 1 + count, device=device) & MASK32
    t = (index * WEYL) & MASK32
    return t ^ (t >> FOLD)


def total(data: Tensor, first: int = 0) -> Tensor:
    """S of bytes whose first word has the index `first`: a (1,) int64 tensor, in which sums wrap modulo 2^64."""
    w = words(data)
    return (w * keys(first, w.numel(), w.device)).sum(0, keepdim=True)


def finish(total: int) -> int:
    """The 32 bits of the checksum, of S.

    >>> hex(finish(1))
    '0x9e3779b9'
    """
    total &= MASK64
    return (((total ^ (total >> 32)) * MIX) & MASK64) >> 32


def finished(total: Tensor) -> Tensor:
    """`finish` where the sum is: of a (1,) int64 tensor, in which sums wrap modulo 2^64.

    >>> hex(finished(torch.tensor([1])))
    '0x9e3779b9'
    """
    mixed = (total ^ ((total >> 32) & MASK32)) * (MIX - (1 << 64))
    return (mixed >> 32) & MASK32


def stored(data: Tensor) -> Tensor:
    """The checksum that a payload says it has, as a (1,) int64 tensor."""
    return data[COVERED:HEADER].clone().view(torch.int32).to(torch.int64) & MASK32
