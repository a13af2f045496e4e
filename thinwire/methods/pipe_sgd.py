"""Pipe-SGD: the mean gradient of a step is used `width` - 1 steps later, and travels while training goes on.

Sends every gradient in float32 or through `compressor`: with float32 at most 64 bits per element and step. A step
takes the longer of computing and sending, where they took their sum.

    x_t+1 = x_t - lr (1/n) sum_i g_i(x_t-K+1),    K = `width`

In the first K - 1 steps after the warm-up the optimizer sees zeros: plain SGD does not move, and momentum or weight
decay do as they do with a gradient of zero. The first `warmup` steps are synchronous and not compressed, as the paper
wants them; with width=1 all are.

Reference: Li, Yu, Li, Avestimehr, Kim, Schwing, "Pipe-SGD: a decentralized pipelined SGD framework for distributed
deep net training", NeurIPS 2018, arXiv 1811.03619.

Departs from the paper: it truncates or quantises inside the ring, for every hop anew; here each rank compresses once,
or twice with `exchange="scatter-gather"`. No warm-up by default, because its length is in epochs.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.named import Named
from thinwire.methods._parts import among_all


@method("pipe-sgd")
def pipe_sgd(
    width: int = 2,
    warmup: int = 0,
    compressor: str | Compressor = "identity",
    feedback: bool = False,
    exchange: Named = "scatter-gather",
) -> Method:
    """Results that come `width` - 1 steps late.

        width        K, steps that are under way at a time; 1 is synchronous
        warmup       synchronous steps in float32 before that
        compressor   what a gradient goes through: an id such as "int:bits=8", or a Compressor of
                     thinwire.compressors; "identity" is an all-reduce in float32
        feedback     whether what a step loses is added to the next one; biased compressors need it
        exchange     of compressed ones, "scatter-gather": through the owners of shards, who compress the mean once
                     more; "all-gather": every payload to every rank, compressed once

    >>> pipe_sgd(width=3).id
    'pipe-sgd:width=3'
    """
    if width < 1:
        raise ValueError(f"pipe_sgd(width={width}): write width=1 for synchronous steps, or more")
    exchanged = among_all("pipe_sgd", compressor, exchange, feedback=feedback)
    return Method(exchanged, Sync(staleness=width - 1, warmup=warmup))
