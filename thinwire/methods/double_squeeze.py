"""DoubleSqueeze: what the workers send and what the server sends back are both compressed, each with error feedback.

Sends a payload of `compressor` to the owners of shards, and as much back, every step. Keeps a residual of the
gradient on every rank, and one of the mean on the owner of each shard.

    worker i   v_i = g_i + e_i,                  sends C(v_i),    e_i = v_i - C(v_i)
    server     v = (1/n) sum_i C(v_i) + e,       sends C(v),      e = v - C(v)
    all        x = x - lr C(v)

Reference: Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze: parallel stochastic gradient descent with double-pass
error-compensated compression", ICML 2019, arXiv 1905.05957, algorithm 1.

Departs from the paper: every rank is the server of a shard, so that no link carries what all workers send. Residuals
are in units of the gradient and are rescaled when the learning rate changes.
"""

from __future__ import annotations

from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.memory.error_feedback import ErrorFeedback
from thinwire.methods._parts import contraction


@method("double-squeeze")
def double_squeeze(compressor: str | Compressor = "scaled-sign") -> Method:
    """Compress both ways, with error feedback at both ends.

        compressor   C: an id such as "topk:ratio=0.01", or a Compressor of thinwire.compressors; unbiased ones are
                     divided by 1 + omega where they lose much

    >>> double_squeeze(compressor="topk:ratio=0.01").id
    'double-squeeze:compressor=(topk:ratio=0.01)'
    """
    return Method(ScatterGather(Channel(contraction(compressor), ErrorFeedback())))
