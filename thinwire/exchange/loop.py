"""What a compressor makes of a vector over many rounds of gossip, measured on a Gaussian matrix.

*Error feedback.* A rank sends m = C(v), v = x + e, and keeps e = v - m. Of a constant x nothing is left out for ever:
m is x on average over the rounds, and scatters around it. Three numbers say what gossip needs:

    scatter   E|m - x|^2 / |x|^2 for a constant x
    held      |e| / |x| after 25 rounds of a constant x
    edge      the largest b for which the loop x = x - b m takes x to zero

If m is x plus independent noise, E|x - b m|^2 = (1 - 2 b + b^2 (1 + scatter)) |x|^2: the edge is 2 / (1 + scatter).
That is what is seen for quantisers and sparsifiers. Scaled signs stand more: around a constant x their scale grows to
that of its largest element, around one that shrinks it does not. So the search for the edge begins at four fifths of
the formula; it goes up while half as much again still settles, and down in steps of a fifth.

*Differences.* A rank sends m = C(x - h), and both ends keep h = h + m, which lags behind x:

    lag_edge  the largest b for which the loop x = x - b h takes x to zero

What is sent tends to zero with x - h, so this loop stands more than the one above wherever C loses much.

Worst-case bounds are of little use here: for scaled signs 1/d would freeze the ranks.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from thinwire.core.types import Key, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from thinwire.core.compressor import Compressor

SHAPE = (16, 512)
ROUNDS = 100  # for the scatter; the second half of them counts
UP, DOWN = 1.5, 0.8  # what the next b to try is of the last
MOST = 2.0  # without compression x = x - b x stops shrinking here
LAG_MOST = 1.0  # of use for differences: a rank gives away all of itself at most
LEAST = 1e-3
SETTLED = 0.5  # of its length: x has come down to that, or the loop is not stable
HELD_AFTER = 25  # rounds
LAG_ROUNDS, LAG_SETTLED, LAG_UP = 200, 0.3, 1.25  # of the loop of differences
GONE = 1e-3  # of its length: nothing more is to be seen


def scatter(compressor: Compressor) -> float:
    """E|m - x|^2 / |x|^2 of a constant x.

    >>> from thinwire.compressors import Identity, RandomK
    >>> scatter(Identity()), round(scatter(RandomK(ratio=0.5, scaled=False)), 1)
    (0.0, 2.0)
    """
    return _constant(compressor)[0]


def held(compressor: Compressor) -> float:
    """|e| / |x| after some rounds of a constant x."""
    return _constant(compressor)[1]


@lru_cache(maxsize=256)
def _constant(compressor: Compressor) -> tuple[float, float]:
    """The scatter, and what is held back, of the same rounds."""
    x, sent, seen = _gaussian(), torch.zeros(math.prod(SHAPE)), 0.0
    for step, m in enumerate(_messages(compressor, x, 0.0, ROUNDS)):
        if step < HELD_AFTER:
            sent += m
        if step >= ROUNDS // 2:
            seen += float((m - x).square().sum() / x.square().sum())
    return seen / (ROUNDS - ROUNDS // 2), float((HELD_AFTER * x - sent).norm() / x.norm())


@lru_cache(maxsize=256)
def edge(compressor: Compressor) -> float:
    """The largest b of those tried for which x = x - b m settles."""
    b = min(MOST, 0.8 * MOST / (1 + scatter(compressor)))
    while b > LEAST and not _settles(compressor, b):
        b *= DOWN
    while b < MOST and _settles(compressor, min(MOST, UP * b)):
        b = min(MOST, UP * b)
    return b


@lru_cache(maxsize=256)
def lag_edge(compressor: Compressor) -> float:
    """The largest b, going up from `edge` until it is of no more use, for which x = x - b h settles."""
    b = edge(compressor)
    while b < LAG_MOST and _lag_settles(compressor, LAG_UP * b):
        b *= LAG_UP
    return b


def _lag_settles(compressor: Compressor, b: float) -> bool:
    x, layout = _gaussian(), Layout.of([("", torch.empty(SHAPE))])
    h, before, last = torch.zeros_like(x), float(x.norm()), [math.inf] * 10
    for step in range(LAG_ROUNDS):
        key = Key(seed=1, step=step)
        h += compressor.decode(compressor.encode(x - h, layout, key), layout, key=key)
        x -= b * h
        last = [*last[1:], float(x.norm()) / before]
        if not last[-1] < 1e3 or max(last) < GONE:
            break
    return sum(last) / len(last) < LAG_SETTLED


def _settles(compressor: Compressor, b: float) -> bool:
    """Whether the loop brings x down, in as many rounds as leave e^-8 of it without compression, 40 to 200."""
    x = _gaussian()
    before, rounds = float(x.norm()), int(min(200, max(40, 8 / b)))
    last = [math.inf] * 10
    for _ in _messages(compressor, x, b, rounds):
        last = [*last[1:], float(x.norm())]
        if not last[-1] < 3 * before:
            return False
    return sum(last) / len(last) < SETTLED * before


def _messages(compressor: Compressor, x: Tensor, b: float, rounds: int) -> Iterator[Tensor]:
    """What is sent in each round; `x` moves by -b m, in place."""
    layout, e = Layout.of([("", x.view(SHAPE))]), torch.zeros_like(x)
    for step in range(rounds):
        key = Key(seed=1, step=step)
        v = x + e
        m = compressor.decode(compressor.encode(v, layout, key), layout, key=key)
        e = v - m
        x -= b * m
        yield m


def _gaussian() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).flatten()
