"""EF21: each rank sends the compressed difference between its gradient and what the others believe it to be.

Sends one payload of a contraction C to every other rank, every step (scaled signs: 1 bit per element). Keeps an
estimate g_i on every rank and their mean on all, in float64.

    g_i += C(grad_i - g_i),    x = x - lr (1/n) sum_i g_i

Unlike error feedback it converges with a constant step on functions that differ between ranks. It is meant for full
or large-batch gradients.

Reference: Richtarik, Sokolov, Fatkhullin, "EF21: a new, simpler, theoretically better, and practically faster error
feedback", NeurIPS 2021, arXiv 2106.05203, algorithm 2.

Departs from the paper: the default C is the scaled sign, where the paper's experiments use top-k.
"""

from __future__ import annotations

from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.difference import Difference
from thinwire.methods._parts import contraction

SHORT = {"int4": "int:bits=4,block=128"}
"""Names that are no ids of compressors."""


@method("ef21")
def ef21(compressor: str | Compressor = "scaled-sign") -> Method:
    """Compressed differences to the last estimate, through a contraction.

        compressor   C: an id such as "topk:ratio=0.01", or a Compressor of thinwire.compressors; unbiased ones are
                     divided by 1 + omega where they lose much; "int4" is "int:bits=4,block=128"

    >>> ef21(compressor="topk:ratio=0.01").id
    'ef21:compressor=(topk:ratio=0.01)'
    """
    c = SHORT.get(compressor, compressor) if isinstance(compressor, str) else compressor
    return Method(AllGather(Channel(contraction(c), Difference())))
