"""Natural compression both ways: every element rounded at random to a power of two, without bias.

Sends 9 bits per element to the owners of shards and 9 bits back, every step; keeps no state.

    x = x - lr C((1/n) sum_i C(g_i))

Both hops are unbiased with omega = 1/8; together they have 1/8 + 9/(64 n) for n equal gradients.

Reference: Horvath, Ho, Horvath, Sahu, Canini, Richtarik, "Natural compression for distributed deep learning", 2019,
arXiv 1905.10988: the bidirectional scheme with C_W = C_M = C_nat.

Departs from the paper: the master is spread over the ranks, one shard each, and compresses the mean, not the sum.
"""

from __future__ import annotations

from thinwire.compressors.natural import Natural
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.scatter_gather import ScatterGather


@method("natural")
def natural() -> Method:
    """Powers of two, both ways.

    >>> natural().id
    'natural'
    """
    return Method(ScatterGather(Channel(Natural())))
