"""All-reduce in fp16: the gradient in 16 bits with 11 bits of precision, summed in these numbers on the wire.

Sends every gradient, 16 bits per element, every step; keeps no state.

    x = x - lr sum_i round16(g_i / n)

round16 goes to the nearest fp16, which has no numbers above 65504 and none between 0 and 6e-8; bf16 has the range of
float32 and 8 bits of precision. A step in which a sum is not finite is skipped on all ranks.

Reference: DDP's `fp16_compress_hook` in PyTorch does the same.

Departs from it: nothing.
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
