"""Blockwise int8: the gradient as integers of 8 bits with one scale per block, to the owners of shards and back.

Sends 8 + 32/B bits per element in each direction, every step; keeps no state.

    x = x - lr Q((1/n) sum_i Q(g_i)),    Q rounds to multiples of max|block| / 127

The owner adds in float32; codes themselves are never added.

Reference: the format and the two all-to-all hops of ZeRO++'s qgZ, arXiv 2306.10209, among others.

Departs from them: scales are float32; rounding is to nearest by default, without error feedback; `stochastic` is
unbiased at twice the squared error.
"""

from __future__ import annotations

from typing import Literal

from thinwire.compressors.int_block import IntBlock
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.scatter_gather import ScatterGather


@method("int8")
def int8(block: int | None = 256, rounding: Literal["nearest", "stochastic"] = "nearest") -> Method:
    """Integers of 8 bits in blocks of `block` elements.

        block      B, elements that share a scale; None: all of a message
        rounding   "nearest", or "stochastic": at random, unbiased

    >>> int8(block=4096).id
    'int8:block=4096'
    """
    return Method(ScatterGather(Channel(IntBlock(8, block, rounding))))
