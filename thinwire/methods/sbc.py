"""Sparse binary compression: places of the largest elements of one sign and one number for all of them.

Sends about log2(d/k) + 1.5 bits for each of k = round(ratio d) places, and 32 bits, to every other rank, every step.
Keeps one residual e_i on every rank.

    p = g + e,    V+ and V- the k largest elements of p of either sign,    mu+ and mu- their mean magnitudes
    q = mu+ on V+ if mu+ >= mu-, else -mu- on V-,    e = p - q,    x = x - (lr / n) sum_i q_i

Reference: Sattler, Wiedemann, Mueller, Samek, "Sparse binary compression: towards distributed deep learning with
minimal communication", 2018, arXiv 1805.08768.

Departs from the paper: it sends the updates of many local steps; here gradients are sent, every step.
"""

from __future__ import annotations

from thinwire.compressors.sbc import Sbc
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.error_feedback import ErrorFeedback


@method("sbc")
def sbc(ratio: float = 0.01) -> Method:
    """One sign of the largest `ratio` of the elements.

        ratio   k/d, the share of the elements that may be sent

    >>> sbc(ratio=0.001).id
    'sbc:ratio=0.001'
    """
    return Method(AllGather(Channel(Sbc(ratio), ErrorFeedback())))
