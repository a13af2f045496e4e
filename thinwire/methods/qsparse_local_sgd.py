"""Qsparse-local-SGD: of how far each rank moved in some local steps, the largest elements are sent, quantised.

Sends, once in `every` steps and to every other rank, k = ratio d elements of log2(1/ratio) + 1.5 bits for the place
and 4.5 for the value: at 1% and 8 steps .016 bits per element and step. Keeps a residual, and one more copy of the
model, from which the ranks set out.

    v_i = m_i + (x_ref - x_i)    after `every` steps x_i = x_i - lr g_i(x_i)
    q_i = C(v_i),    m_i = v_i - q_i
    x_ref = x_ref - (1/n) sum_j q_j,    x_i = x_ref

C takes the largest elements and quantises them (thinwire/compressors/quantised_topk.py). What was sent and what is
left in m_i always add up to the way that the rank went. With ratio=1 and compressor="identity" it is local SGD.

Reference: Basu, Data, Karakus, Diggavi, "Qsparse-local-SGD: distributed SGD with quantization, sparsification, and
local computations", NeurIPS 2019, arXiv 1906.02367, algorithm 1.

Departs from the paper: any optimizer takes the local steps; ranks send to each other and not through a master; k is
taken from a chunk of a bucket, and not from a tensor.
"""

from __future__ import annotations

from thinwire.compressors.quantised_topk import QuantisedTopK
from thinwire.compressors.sparse import Indices
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.error_feedback import ErrorFeedback
from thinwire.methods._parts import MEAN, made
from thinwire.sync.delta import Delta, Share


@method("qsparse-local-sgd")
def qsparse_local_sgd(
    every: int = 8,
    ratio: float = 0.01,
    compressor: str | Compressor = "qsgd:bits=4,block=64",
    indices: Indices = "gaps",
    buffers: Share = "leave",
) -> Method:
    """The largest elements of differences of local SGD, quantised, with a residual.

        every        H, local steps from one exchange to the next
        ratio        k / d, the share of the elements that is sent
        compressor   what their values go through: an id such as "scaled-sign", or a Compressor of
                     thinwire.compressors
        indices      how places are written: "gaps", Golomb coded; "packed", in fields of equal width
        buffers      "mean": BatchNorm's buffers are averaged; "leave": each rank keeps its own

    >>> qsparse_local_sgd(compressor="scaled-sign").id
    'qsparse-local-sgd:compressor=scaled-sign'
    """
    channel = Channel(QuantisedTopK(ratio, compressor=made(compressor), indices=indices), ErrorFeedback())
    return Method(AllGather(channel), Sync(of=Delta(MEAN, buffers=buffers), every=every))
