"""Suresh's variable-length code: a grid as fine as a block's length allows, and the levels at their entropy.

Sends the entropy of the levels + 32/B bits per element to every other rank, every step; keeps no state.

    x = x - (lr / n) sum_i Q(g_i),    Q rounds at random to multiples of sqrt(2) |g| / sqrt(B), |g| a block's length

The error is at most |g|^2 / 2 on each rank, and the levels take at most about 2.9 bits per element for any g (1.8 for
a Gaussian) once rANS has coded them: the mean of n ranks errs by at most 1 / (2 n) times the mean of |g_i|^2.

Reference: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited communication", ICML 2017,
arXiv 1611.00429, section 4.

Departs from the paper: blocks of B elements; the grid has a point at 0, not at min, so that blocks share a histogram;
rANS stands for arithmetic coding.
"""

from __future__ import annotations

import math

from thinwire.codecs.rans import Rans
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather


@method("suresh-vlc")
def suresh_vlc(block: int = 4096) -> Method:
    """Multiples of sqrt(2 / B) of the length of blocks of B = `block` elements, entropy coded.

        block   B, elements that share a length |g|, 2 to 32768

    >>> suresh_vlc(block=1024).exchange.channel.compressor
    Qsgd(bits=None, levels=23, norm='l2', symmetric=True, block=1024)
    """
    if not 2 <= block <= 1 << 15:
        raise ValueError(f"suresh_vlc(block={block}): symbols of 8 bits fit blocks of 2 to 32768 elements")
    levels = min(127, math.ceil(math.sqrt(block / 2)))
    return Method(AllGather(Channel(Qsgd(levels=levels, norm="l2", block=block), codec=Rans())))
