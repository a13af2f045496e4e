"""Mean estimation with k-level rounding, after a rotation (srq) or behind an entropy code (suresh-vlc).

Sends to every other rank, every step; keeps no state.

    srq          ceil(log2 k) + 64/B bits an element:    x = x - (lr / n) sum_i R_i' Q_k(R_i g_i)
    suresh-vlc   entropy of the levels + 32/B bits:      x = x - (lr / n) sum_i Q(g_i)

srq rounds to k levels on [min, max] of a rotated block of B elements. suresh-vlc rounds to multiples of
sqrt(2) |g| / sqrt(B), |g| a block's length: an error of at most |g|^2 / 2, and at most about 2.9 bits an element for
any g (1.8 for a Gaussian) once rANS has coded them, so that n ranks together err by O(1/n) at O(1) bits.
Errors, over the mean of |g_i|^2: (2 ln B + 2) / (n (k-1)^2) for srq, 1 / (2 n) for suresh-vlc.

Reference: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited communication", ICML 2017,
arXiv 1611.00429, sections 3 and 4.

Departs from the paper: blocks of B elements. srq: each rank has its own rotation R_i, and payloads are rotated back
one by one. suresh-vlc: the grid has a point at 0, not at min, so that blocks share a histogram; rANS stands for
arithmetic coding.
"""

from __future__ import annotations

import math

from thinwire.codecs.rans import Rans
from thinwire.compressors.k_level import KLevel
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.rotated import Rotated
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.exchange.named import Named, through


@method("srq")
def srq(k: int = 16, block: int = 4096, exchange: Named = "all-gather") -> Method:
    """`k` levels on the range of rotated blocks of `block` elements.

    >>> srq(k=2).id
    'srq:k=2'
    """
    return Method(through("srq", exchange, Channel(Rotated(KLevel(k, block), block))))


@method("suresh-vlc")
def suresh_vlc(block: int = 4096) -> Method:
    """Multiples of sqrt(2 / B) of the length of blocks of B = `block` elements, entropy coded.

    >>> suresh_vlc(block=1024).exchange.channel.compressor
    Qsgd(bits=None, levels=23, norm='l2', symmetric=True, block=1024)
    """
    if not 2 <= block <= 1 << 15:
        raise ValueError(f"suresh_vlc(block={block}): symbols of 8 bits fit blocks of 2 to 32768 elements")
    levels = min(127, math.ceil(math.sqrt(block / 2)))
    return Method(AllGather(Channel(Qsgd(levels=levels, norm="l2", block=block), codec=Rans())))
