"""ECQ-SGD: QSGD of the gradient plus a decaying sum of all past quantisation errors.

Sends one quantised payload to every other rank, every step; keeps one residual h a rank.

    g~ = Q_s(g + alpha h),    h = beta h + (g - g~),    x = x - (lr / n) sum_i g~_i

Stable when alpha^2 gamma + (beta - alpha)^2 < 1, gamma = min(B/s^2, sqrt(B)/s) for L2 scaling.
With `code="rans"` the symbols take their entropy, 0.73 bits an element at s = 4 and blocks of 512 of a Gaussian,
where fields of equal width take 4. `code="huffman"` is the paper's code, with zero runs.
With `exchange="scatter-gather"` the owners of shards quantise their means too, with a residual of their own.

Reference: Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed
optimization", ICML 2018, arXiv 1806.08054. The paper itself could not be had; this follows accounts of it.

Departs from the paper: every `block` of 512 elements has its own norm, where the paper takes that of the whole
gradient; `block=None` takes that of a message. h is multiplied by lr / lr' when the learning rate changes from lr to
lr', so that it moves the parameters as it would have; the accounts know of one learning rate (write
ErrorFeedback(0.2, 0.9, rescaled=False) in a Channel for their h). Fields of equal width unless `code` is given, since
they are packed in the pass that rounds. alpha = 0.2 and beta = 0.9 come from a public port. Scatter-gather is ours.
"""

from __future__ import annotations

from typing import Literal

from thinwire.codecs.named import Code, coded
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.named import Named, through
from thinwire.memory.error_feedback import ErrorFeedback


@method("ecq-sgd")
def ecq_sgd(
    levels: int = 4,
    alpha: float = 0.2,
    beta: float = 0.9,
    norm: Literal["max", "l2"] = "l2",
    block: int | None = 512,
    exchange: Named = "all-gather",
    code: Code = "bits",
) -> Method:
    """Error-compensated QSGD with `levels` non-zero magnitudes.

    >>> ecq_sgd(alpha=0.3).id
    'ecq-sgd:alpha=0.3'
    """
    quantiser = Qsgd(levels=levels, norm=norm, block=block)
    channel = Channel(quantiser, ErrorFeedback(alpha, beta), coded("ecq_sgd", code))
    return Method(through("ecq_sgd", exchange, channel))
