"""EF-signSGD: signs times the mean magnitude of their tensor, with error feedback.

Sends 1 bit per element and 32 bits per tensor to the owners of shards, and as much back, every step. Keeps a
residual e of the gradient on every rank and one of the mean on the owner of each shard.

    p_i = g_i + e_i,    q_i = (|p_i|_1 / d) sign(p_i),    e_i = p_i - q_i;    x = x - (lr / n) sum_i q_i

`exchange="all-gather"` sends each payload to every other rank and quantises once.

Reference: Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes",
ICML 2019, arXiv 1901.09847, algorithm 2; the two directions as in Zheng, Huang, Kwok, "Communication-efficient
distributed blockwise momentum SGD with error-feedback", NeurIPS 2019, arXiv 1905.10936.

Departs from the paper: the residual is in units of the gradient and is rescaled when the learning rate changes, which
comes to the paper's p = lr g + e. The paper has one worker.
"""

from __future__ import annotations

from thinwire.compressors.scaled_sign import ScaledSign
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.named import Named, through
from thinwire.memory.error_feedback import ErrorFeedback


@method("ef-signsgd")
def ef_signsgd(block: int | None = None, exchange: Named = "scatter-gather") -> Method:
    """Scaled signs with error feedback; `block` elements share a scale (None: all of a tensor).

        block      elements that share a scale |p|_1 / d; None: those of a tensor
        exchange   "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                   2 (n-1)/n payloads. "all-gather": every payload to every rank, compressed once; a rank sends n - 1

    >>> ef_signsgd(exchange="all-gather").id
    'ef-signsgd:exchange=all-gather'
    """
    return Method(through("ef_signsgd", exchange, Channel(ScaledSign(block), ErrorFeedback())))
