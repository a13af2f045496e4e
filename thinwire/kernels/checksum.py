"""The checksum of a payload: a sum over its words, so that any pass that holds the words can make it.

With the payload as little-endian 32-bit words w_i, i counted from its first byte and the end padded with zero bytes,

    z_j = j * STEP + START mod 2^64,    K_j = z_j xor (z_j mod 2^32)^2,    S = sum of w_i * k_i mod 2^64,

where the keys k_2j and k_2j+1 are the low and the high half of K_j. The checksum is the high half of S after

    S <- (S xor (S >> 32)) * MIX mod 2^64,    S <- (S xor (S >> 29)) * MIX mod 2^64.

Word 7 is the checksum itself and is left out; where the header's flag CHECKED is not set, words 0 to 6 are all that
it covers. Products of 32-bit numbers are exact in 64 bits, so that S changes with any one word whose key is not 0,
as none of the first 2^28 keys is. With keys drawn at random no change of a message would leave S as it was with a
probability above 2^-32 (multilinear hashing: Carter and Wegman, "Universal classes of hash functions", 1979). The
square makes the keys behave like random ones: of keys in arithmetic progression some are twice others, and their sums
do not see equal words change places.

This file is the definition; the other tiers have the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thinwire.kernels.spec import COVERED, HEADER

if TYPE_CHECKING:
    from torch import Tensor

STEP = 0x9E3779B97F4A7C15
START = 0xD1B54A32D192ED03
MIX = 0xD6E8FEB86659FD93
MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def signed(number: int) -> int:
    """A number of 64 bits as int64 holds it.

    >>> signed(5), signed(2**64 - 1)
    (5, -1)
    """
    return number - (1 << 64) if number >> 63 else number


def words(data: Tensor) -> Tensor:
    """Bytes as 32-bit words in int64, the last one padded with zeros.

    >>> words(torch.tensor([1, 0, 0, 0, 2], dtype=torch.uint8))
    tensor([1, 2])
    """
    padded = data.new_zeros(-(-data.numel() // 4) * 4)
    padded[: data.numel()] = data
    return padded.view(torch.int32).to(torch.int64) & MASK32


def keys(first: int, count: int, device: torch.device | None = None) -> Tensor:
    """k_i of `count` words from index `first` on, in int64, where products wrap modulo 2^64.

    >>> [hex(k) for k in keys(0, 3).tolist()]
    ['0xc948630a', '0x7a247160', '0xce49db58']
    """
    i = torch.arange(first, first + count, device=device)
    z = (i >> 1) * signed(STEP) + signed(START)
    low = z & MASK32
    both = z ^ (low * low)
    return torch.where(i & 1 == 0, both, both >> 32) & MASK32


def total(data: Tensor, first: int = 0) -> Tensor:
    """S of bytes whose first word has the index `first`: a (1,) int64 tensor, in which sums wrap modulo 2^64."""
    w = words(data)
    return (w * keys(first, w.numel(), w.device)).sum(0, keepdim=True)


def finish(total: int) -> int:
    """The 32 bits of the checksum, of S modulo 2^64.

    >>> hex(finish(1))
    '0xc58ae07d'
    """
    s = total & MASK64
    s = (s ^ (s >> 32)) * MIX & MASK64
    s = (s ^ (s >> 29)) * MIX & MASK64
    return s >> 32


def finished(total: Tensor) -> Tensor:
    """`finish` where the sum is: of a (1,) int64 tensor, in which products wrap modulo 2^64.

    >>> hex(finished(torch.tensor([1])))
    '0xc58ae07d'
    """
    s = total
    for shift in (32, 29):
        s = (s ^ ((s >> shift) & (MASK64 >> shift))) * signed(MIX)
    return (s >> 32) & MASK32


def stored(data: Tensor) -> Tensor:
    """The checksum that a payload says it has, as a (1,) int64 tensor."""
    return data[COVERED:HEADER].clone().view(torch.int32).to(torch.int64) & MASK32
