"""Stochastic rotated quantisation: k levels on the range of a randomly rotated block, unbiased.

Sends ceil(log2 k) + 64/B bits per element to every other rank, every step; keeps no state. Each rank draws its own
rotation R_i.

    x = x - (lr / n) sum_i R_i' Q_k(R_i g_i)

Q_k rounds at random to one of k levels on [min, max] of a block of B elements. The mean of n ranks errs by at most
(2 ln B + 2) / (n (k-1)^2) times the mean of |g_i|^2.

Reference: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited communication", ICML 2017,
arXiv 1611.00429, section 3.

Departs from the paper: blocks of B elements; each rank has its own rotation, so that payloads are rotated back one by
one.
"""

from __future__ import annotations

from thinwire.compressors.k_level import KLevel
from thinwire.compressors.rotated import Rotated
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.named import Named, through


@method("srq")
def srq(k: int = 16, block: int = 4096, exchange: Named = "all-gather") -> Method:
    """`k` levels on the range of rotated blocks of `block` elements.

        k          levels on the range of a block
        block      B, elements that are rotated together, a power of two
        exchange   "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                   2 (n-1)/n payloads. "all-gather": every payload to every rank, compressed once; a rank sends n - 1

    >>> srq(k=2).id
    'srq:k=2'
    """
    return Method(through("srq", exchange, Channel(Rotated(KLevel(k, block), block))))
