"""DeMo, decoupled momentum: ranks send the largest cosine coefficients of their momentum, and keep the rest of it.

Sends, for each chunk of up to 64 x 64 elements of a tensor, 32 coefficients of 28 bits to every other rank, every
step: 0.219 bits per element. Each rank keeps its momentum, less what it has sent.

    m = beta m + g,    q = the `k` largest coefficients of DCT(m),    m = m - DCT^-1(q)
    c = for each coefficient the mean over the ranks that sent it,    x = x - lr sign(DCT^-1(c))

Use it with plain SGD, whose weight decay is then the decoupled one; `sign=False` leaves out the sign.

Reference: Peng, Quesnelle, Kingma, "Decoupled momentum optimization", 2024, arXiv 2411.19870, algorithm 1 and the
authors' code.

Departs from the code: its momentum adds lr g; ours adds g and is rescaled when lr changes, which is the same. Values
are bf16 (thinwire/compressors/dct_topk.py). The memory is ErrorFeedback with alpha = beta: p = g + beta e, e = p - q.
"""

from __future__ import annotations

from thinwire.compressors.dct_topk import DctTopK
from thinwire.core.channel import Channel
from thinwire.core.method import Method, Overlap, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.mean_of_senders import MeanOfSenders
from thinwire.memory.error_feedback import ErrorFeedback

WHOLE = float(1 << 20)  # MiB: a bucket is one chunk, so that no matrix is cut


def _recipe(method: Method) -> Recipe:
    """Signs move every weight by lr; without them the result is a gradient."""
    return Recipe(momentum=0.0) if method.exchange.keeps_scale else Recipe(momentum=0.0, lr=3e-3)


@method("demo", _recipe)
def demo(beta: float = 0.999, k: int = 32, chunk: int = 64, sign: bool = True) -> Method:
    """The `k` largest coefficients of every chunk of a momentum that forgets with factor `beta`.

        beta    what a step leaves of the momentum m
        k       coefficients that are sent of every chunk
        chunk   edge of a chunk: matrices are cut into pieces of up to chunk x chunk elements
        sign    step by the sign of the result; False steps by the result itself

    >>> demo(k=16).id
    'demo:k=16'
    """
    channel = Channel(DctTopK(chunk, k), ErrorFeedback(alpha=beta, beta=beta))
    return Method(MeanOfSenders(channel, sign), overlap=Overlap(chunk_mb=WHOLE))
