"""ECQ-SGD: QSGD of the gradient plus a decaying sum of all past quantisation errors.

Sends one quantised and entropy-coded payload to the owners of shards, and as much back, every step. Keeps a residual
h on every rank, and one of the mean, h', on the owner of each shard.

    g~ = Q_s(g + alpha h),    h = beta h + (g - g~)                         on every rank
    x = x - lr g^,   g^ = Q_s(m + alpha h'),    h' = beta h' + (m - g^)     m = (1/n) sum_i g~_i, on the owner

It is stable when alpha^2 gamma + (beta - alpha)^2 < 1, gamma = min(B/s^2, sqrt(B)/s) for L2 scaling.
The symbols take their entropy, 0.73 bits per element at s = 4 and blocks of 512 of a Gaussian, where fields of equal
width (`code="bits"`) take 4. The paper's form is `exchange="all-gather"`, where all ranks hear all payloads and
x = x - lr m; its code is `code="huffman"`, with zero runs.

Reference: Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed
optimization", ICML 2018, arXiv 1806.08054. The paper itself was not at hand; this follows accounts of it.

Departs from the paper: scatter-gather, with its second rounding, is ours, and so is rANS. Every `block` of 512
elements has its own norm, where the paper takes that of the whole gradient; `block=None` takes that of a message. h
is multiplied by lr / lr' when the learning rate changes from lr to lr', so that it moves the parameters as it would
have; the accounts know of one learning rate (write ErrorFeedback(0.2, 0.9, rescaled=False) in a Channel for their h).
alpha = 0.2 and beta = 0.9 come from a public port.
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
    exchange: Named = "scatter-gather",
    code: Code = "rans",
) -> Method:
    """Error-compensated QSGD with `levels` non-zero magnitudes.

        levels     s, the non-zero magnitudes of the quantiser Q_s
        alpha      weight of the residual h in what is quantised
        beta       what a step leaves of the old residual
        norm       what scales a block: "max", its largest magnitude, or "l2", its length
        block      B, elements that share a scale; None: all of a message
        exchange   "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                   2 (n-1)/n payloads. "all-gather": every payload to every rank, compressed once; a rank sends n - 1
        code       how levels are written: "bits", fields of equal width; "rans", their entropy and 1 to 2% more;
                   "huffman", whole bits and runs of zeros. On a GPU the last runs on the host

    >>> ecq_sgd(alpha=0.3).id
    'ecq-sgd:alpha=0.3'
    """
    quantiser = Qsgd(levels=levels, norm=norm, block=block)
    channel = Channel(quantiser, ErrorFeedback(alpha, beta), coded("ecq_sgd", code))
    return Method(through("ecq_sgd", exchange, channel))
