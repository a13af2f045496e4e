"""All-reduce in bf16: the gradient in 16 bits with the range of float32, summed in these numbers on the wire.

Sends every gradient, 16 bits per element, every step; keeps no state.

    x = x - lr sum_i round16(g_i / n)

round16 goes to the nearest bf16, which has 8 bits of precision: each rounding moves an element by at most 2^-8 of it.

Reference: DDP's `bf16_compress_hook` in PyTorch does the same.

Departs from it: nothing.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.exchange.all_reduce import AllReduce


@method("bf16")
def bf16() -> Method:
    """All-reduce of bf16.

    >>> bf16().id
    'bf16'
    """
    return Method(AllReduce(wire="bf16"))
