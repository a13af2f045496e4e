"""DRIVE: one bit per element after a random rotation, unbiased.

Sends 1 + 32/B bits per element to every other rank, every step; keeps no state. Each rank draws its own rotation.

    x = x - (lr / n) sum_i S_i R_i' sgn(R_i g_i),    S_i = |R_i g_i|_2^2 / |R_i g_i|_1

Reference: Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "DRIVE: one-bit distributed mean
estimation", NeurIPS 2021, arXiv 2105.08339.

Departs from the paper: see thinwire.compressors.drive. Every rank decodes in place of a server.
"""

from __future__ import annotations

from thinwire.compressors.drive import Drive
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.named import Named, through


@method("drive")
def drive(block: int = 4096, exchange: Named = "all-gather") -> Method:
    """Signs of rotated blocks of `block` elements.

        block      B, elements that are rotated together, a power of two
        exchange   "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                   2 (n-1)/n payloads. "all-gather": every payload to every rank, compressed once; a rank sends n - 1

    >>> drive(block=65536).id
    'drive:block=65536'
    """
    return Method(through("drive", exchange, Channel(Drive(block=block))))
