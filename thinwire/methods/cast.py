"""16-bit all-reduce: the gradient as fp16 or bf16, summed in these numbers on the wire.

Sends every gradient, 16 bits an element, every step; keeps no state.

    x = x - lr sum_i round16(g_i / n)

bf16 has the range of float32 and 8 bits of precision; fp16 has 11 bits, and no numbers above 65504 or below 6e-8.

Reference: DDP's `fp16_compress_hook` and `bf16_compress_hook` in PyTorch do the same.

Departs from them: nothing.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.exchange.all_reduce import AllReduce


@method("fp16")
def fp16() -> Method:
    """All-reduce of fp16.

    >>> fp16().id
    'fp16'
    """
    return Method(AllReduce(wire="fp16"))


@method("bf16")
def bf16() -> Method:
    """All-reduce of bf16.

    >>> bf16().id
    'bf16'
    """
    return Method(AllReduce(wire="bf16"))
