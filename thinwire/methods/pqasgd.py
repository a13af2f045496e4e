"""PQASGD: how far each rank moved in `every` local steps is quantised without bias, and averaged.

Sends b + 32/512 bits per element once in `every` steps, to every other rank: with 2 bits and 8 steps .26 bits per
step. Keeps one more copy of the model, from which the ranks set out.

    d_i = x_ref - x_i    after `every` steps x_i = x_i - lr g_i(x_i)
    x_ref = x_ref - (1/n) sum_j Q(d_j),    x_i = x_ref

On average over Q a round is one of local SGD, and Q = identity is local SGD.

Reference: Jiang, Agrawal, "A linear speedup analysis of distributed deep learning with sparse and quantized
communication", NeurIPS 2018.

Departs from the paper: any optimizer takes the local steps. `exchange="scatter-gather"` rounds the mean once more,
and sends less where there are more than two ranks.
"""

from __future__ import annotations

from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.named import Named, through
from thinwire.methods._parts import MEAN, made
from thinwire.sync.delta import Delta, Share


@method("pqasgd")
def pqasgd(
    every: int = 8,
    compressor: str | Compressor = "qsgd:bits=2",
    exchange: Named = "all-gather",
    buffers: Share = "leave",
) -> Method:
    """Quantised differences of local SGD.

        every        p, local steps from one exchange to the next
        compressor   Q, unbiased: an id such as "qsgd:bits=4", or a Compressor of thinwire.compressors
        exchange     "all-gather": every payload to every rank, compressed once; a rank sends n - 1.
                     "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                     2 (n-1)/n payloads
        buffers      "mean": BatchNorm's buffers are averaged; "leave": each rank keeps its own

    >>> pqasgd(compressor="qsgd:bits=4").id
    'pqasgd:compressor=(qsgd:bits=4)'
    """
    quantiser = made(compressor)
    if not quantiser.unbiased:
        raise ValueError(
            f"pqasgd keeps no residual, and {quantiser.id} is biased; write pqasgd(compressor='qsgd:bits=2'), or "
            "qsparse_local_sgd()"
        )
    return Method(through("pqasgd", exchange, Channel(quantiser)), Sync(of=Delta(MEAN, buffers=buffers), every=every))
