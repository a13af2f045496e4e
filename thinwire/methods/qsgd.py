"""QSGD: every rank broadcasts its stochastically quantised gradient and decodes everybody's.

Sends one payload of b + 32/B bits an element to every other rank, every step; keeps no state.

    x = x - (lr / n) sum_i Q(g_i)

Reference: Alistarh et al., NeurIPS 2017, arXiv 1610.02132, algorithm 1.

Departs from the paper: see thinwire.compressors.qsgd for what `bits` counts.
"""

from __future__ import annotations

from typing import Literal

from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather


@method("qsgd")
def qsgd(
    bits: int | None = 4,
    levels: int | None = None,
    norm: Literal["max", "l2"] = "max",
    block: int | None = 512,
) -> Method:
    """QSGD with fields of `bits`, or with `levels` non-zero magnitudes (`bits` is then ignored).

    >>> qsgd(bits=2).id
    'qsgd:bits=2'
    """
    return Method(AllGather(Channel(Qsgd(bits if levels is None else None, levels, norm, block=block))))
