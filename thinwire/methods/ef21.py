"""EF21: each rank sends the compressed difference between its gradient and what the others believe it to be.

Sends one payload of a contraction C to every other rank, every step (scaled signs: 1 bit per element). Keeps an
estimate g_i on every rank and their mean on all.

    g_i += C(grad_i - g_i),    x = x - lr (1/n) sum_i g_i

Unlike error feedback it converges with a constant step on functions that differ between ranks. It is meant for full
or large-batch gradients.

Reference: Richtarik, Sokolov, Fatkhullin, "EF21: a new, simpler, theoretically better, and practically faster error
feedback", NeurIPS 2021, arXiv 2106.05203, algorithm 2.

Departs from the paper: the default C is the scaled sign, where the paper's experiments use top-k. For another
contraction write Method(AllGather(Channel(C, Difference()))).
"""

from __future__ import annotations

from typing import Literal

from thinwire.compressors.int_block import IntBlock
from thinwire.compressors.one_bit import OneBit
from thinwire.compressors.scaled_sign import ScaledSign
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.config import check_choice
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.difference import Difference

CONTRACTIONS: dict[str, Compressor] = {
    "scaled-sign": ScaledSign(),
    "one-bit": OneBit(),
    "int4": IntBlock(bits=4, block=128),
}


@method("ef21")
def ef21(compressor: Literal["scaled-sign", "one-bit", "int4"] = "scaled-sign") -> Method:
    """Compressed differences to the last estimate, through a contraction.

        compressor   C: "scaled-sign", "one-bit" or "int4"

    >>> ef21(compressor="one-bit").id
    'ef21:compressor=one-bit'
    """
    check_choice("ef21", "compressor", compressor, tuple(CONTRACTIONS))
    return Method(AllGather(Channel(CONTRACTIONS[compressor], Difference())))
