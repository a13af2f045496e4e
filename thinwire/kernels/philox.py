"""Philox4x32 counter-based noise, in plain torch.

`philox(counter, key, rounds)` maps a 128-bit counter and a 64-bit key to four 32-bit words. We use 7 rounds, the
fewest that the authors found to pass BigCrush.

Reference: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch

from thinwire.kernels.planar import narrow
from thinwire.kernels.spec import LANES, ROWS, TILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.kernels.key import Key

Word = TypeVar("Word", "Tensor", int)

MASK = 0xFFFFFFFF
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 7


def _multiply(a: Word, m: int) -> tuple[Word, Word]:
    """High and low 32 bits of a * m. int64 wraps, and the arithmetic shift is masked, so no bit is lost."""
    product = a * m
    return (product >> 32) & MASK, product & MASK


def philox(counter: Sequence[Word], key: tuple[int, int], rounds: int = ROUNDS) -> list[Word]:
    """Four words in [0, 2^32) from four counters: ints, or int64 tensors of them."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        hi0, lo0 = _multiply(c0, M0)
        hi1, lo1 = _multiply(c2, M1)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return [c0, c1, c2, c3]


def noise(key: Key, n: int, device: torch.device) -> Tensor:
    """The 32-bit noise of elements 0 .. n-1, in element order (see `spec`), as int64."""
    k0, k1, first, *rest = key.words()
    tiles = -(-n // TILE)
    lanes = (torch.arange(tiles * LANES, device=device) + first) & MASK
    words = philox([lanes, *(torch.full_like(lanes, w) for w in rest)], (k0, k1))
    turned = [part for w in words for part in ((w << 16 | w >> 16) & MASK, w)]
    wide = torch.stack(turned, 1).view(tiles, LANES, ROWS).transpose(1, 2)
    return narrow(wide.reshape(tiles, TILE), n)


def first(key: Key) -> int:
    """The noise of element 0, without a tensor."""
    k0, k1, *counter = key.words()
    word = philox(counter, (k0, k1))[0]
    return (word << 16 | word >> 16) & MASK
