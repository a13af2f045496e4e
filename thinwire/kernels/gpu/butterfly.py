"""What the kernels of rotations share: random signs, and the butterflies of a Walsh-Hadamard transform."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

ROUNDS = tl.constexpr(7)


def signed(words: Sequence[int]) -> list[int]:
    """Philox's six words as int32: arguments of one type, whatever their values, so that nothing compiles twice."""
    return [word - (1 << 32) if word >> 31 else word for word in words]


@triton.jit
def flips(calls, k0, k1, first, c1, c2, c3, TILE: tl.constexpr):
    """Whether each of `TILE` elements changes its sign, 128 of them for each of `calls` (see `kernels.hadamard`)."""
    counter = calls.to(tl.uint32) + first.to(tl.uint32, bitcast=True)
    zero = tl.zeros_like(counter)
    second = zero + c1.to(tl.uint32, bitcast=True)
    third = zero + c2.to(tl.uint32, bitcast=True)
    fourth = zero + c3.to(tl.uint32, bitcast=True)
    low, high = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    a, b, c, d = tl.philox_impl(counter, second, third, fourth, low, high, ROUNDS)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (TILE // 32, 1))
    bits = (words >> tl.arange(0, 32)[None, :].to(tl.uint32)) & 1
    return tl.reshape(bits, (TILE,)) != 0


@triton.jit
def butterflies(x, TILE: tl.constexpr, FIRST: tl.constexpr, STAGES: tl.constexpr):
    """(a + b, a - b) of the elements of `x`, (TILE,), at distances 2^FIRST, ..., 2^(FIRST + STAGES - 1)."""
    for stage in tl.static_range(STAGES):
        pairs = tl.reshape(x, (TILE >> (FIRST + stage + 1), 2, 1 << (FIRST + stage)))
        a, b = tl.split(tl.permute(pairs, (0, 2, 1)))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (TILE,))
    return x
