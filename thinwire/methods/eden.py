"""EDEN: any number of bits per element after a random rotation, unbiased.

Sends b + 32/B bits per element to every other rank, every step; keeps no state. Each rank draws its own rotation.

    x = x - (lr / n) sum_i S_i R_i' c(R_i g_i),    S_i = |R_i g_i|^2 / <c, R_i g_i>

with c the nearest Lloyd-Max centroids of a Gaussian.

Reference: Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "EDEN: communication-efficient and
robust distributed mean estimation for federated learning", ICML 2022, arXiv 2108.08842.

Departs from the paper: see thinwire.compressors.eden. Every rank decodes in place of a server.
"""

from __future__ import annotations

from thinwire.compressors.eden import Eden
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.named import Named, through


@method("eden")
def eden(bits: float = 2, block: int = 4096, exchange: Named = "all-gather") -> Method:
    """`bits` per element, 1/64 to 4, in rotated blocks of `block` elements.

        bits       b, bits per element: any number from 1/64 to 4
        block      B, elements that are rotated together, a power of two
        exchange   "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                   2 (n-1)/n payloads. "all-gather": every payload to every rank, compressed once; a rank sends n - 1

    >>> eden(bits=0.5).id
    'eden:bits=0.5'
    """
    return Method(through("eden", exchange, Channel(Eden(bits, block=block))))
