"""TernGrad: ternary gradients with one scaler for all ranks, so that the server adds integers.

Sends the scalers (32 bits per tensor), then 2 bits per element to the owners of shards, who send the exact sums back
in ceil(log2(2n + 1)) bits, every step; keeps no state.

    each rank clips g_i to 2.5 of its standard deviations, tensor by tensor;    s = max_i max|g_i|
    b_i ~ Bernoulli(|g_i| / s),    x = x - lr (s / n) sum_i sgn(g_i) b_i

`share=False` leaves every rank its own scaler and sends each payload to every other rank.

Reference: Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: ternary gradients to reduce communication in distributed deep
learning", NeurIPS 2017, arXiv 1705.07878, algorithm 1.

Departs from the paper: see thinwire.compressors.terngrad for the clipping and thinwire.exchange.shared_scale for the
server.
"""

from __future__ import annotations

from thinwire.compressors.terngrad import TernGrad
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.exchange.shared_scale import SharedScale


@method("terngrad")
def terngrad(clip: float | None = 2.5, share: bool = True) -> Method:
    """Ternary gradients, clipped to `clip` standard deviations (None: not clipped).

        clip    standard deviations to which gradients are clipped; None does not clip
        share   one scaler s for all ranks, so that integers are added; False leaves every rank its own

    >>> terngrad(share=False).id
    'terngrad:share=false'
    """
    ternary = TernGrad(clip)
    return Method(SharedScale(ternary) if share else AllGather(Channel(ternary)))
