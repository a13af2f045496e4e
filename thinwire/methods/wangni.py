"""Wangni's sparsification: every rank drops elements at random, small ones more often, and stays right on average.

Sends, for each of about `ratio` d elements that survive, 2 bits and a place, and 32 bits for each that was certain
to, to every other rank, every step. Keeps no state. See thinwire.compressors.wangni for the equations.

    x = x - (lr / n) sum_i C(g_i),    E C(g) = g,    E|C(g)|^2 <= |g|^2 / ratio

Reference: Wangni, Wang, Liu, Zhang, "Gradient sparsification for communication-efficient distributed optimization",
NeurIPS 2018, arXiv 1710.09854.

Departs from the paper: see thinwire.compressors.wangni.
"""

from __future__ import annotations

from thinwire.compressors.wangni import Wangni
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather


@method("wangni")
def wangni(ratio: float = 0.05) -> Method:
    """About the share `ratio` of the elements, drawn by size.

        ratio   expected share of the elements that survive

    >>> wangni(ratio=0.1).id
    'wangni:ratio=0.1'
    """
    return Method(AllGather(Channel(Wangni(ratio))))
