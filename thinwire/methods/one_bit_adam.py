"""1-bit Adam: after a warm-up of plain Adam the variance is frozen and the momentum takes one bit per element.

Sends every gradient, 32 bits per element, for `warmup` steps; then the momentum as signs and one scale per tensor, to
the owners of shards and back. Keeps a residual of the momentum on every rank and one of the mean on its owner.

    warm-up   m = b1 m + (1 - b1) mean_i g_i,    v = b2 v + (1 - b2) (mean_i g_i)^2
    then      m_i = b1 m + (1 - b1) g_i,    m = C(mean_i C(m_i + e_i) + e'),    v as it was
    always    x = x - lr m^ / (sqrt(v^) + eps)

It needs an optimizer whose variance stops with the warm-up: thinwire.optim.OneBitAdam(..., freeze=warmup). With
torch's Adam the variance would go on changing with what the signs decode to.

Reference: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed",
ICML 2021, arXiv 2102.02888, algorithm 1.

Departs from the paper: C is the mean magnitude of a tensor times its signs, |x|_1/d, as in EF-signSGD; DeepSpeed's
backend uses |x|_2/sqrt(d) of the whole buffer. The residual is not rescaled when the learning rate changes, as in
their code. `warmup` is given; the authors also choose it by watching the variance settle.
"""

from __future__ import annotations

from thinwire.compressors.scaled_sign import ScaledSign
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.core.schedule import Sync
from thinwire.core.signals import Momentum
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.memory.error_feedback import ErrorFeedback


@method("one-bit-adam", Recipe("1-bit adam", momentum=0.0, lr=1e-3))
def one_bit_adam(warmup: int = 100) -> Method:
    """The momentum in one bit per element after `warmup` uncompressed steps.

        warmup   uncompressed steps of plain Adam before the variance freezes

    >>> one_bit_adam(warmup=1000).id
    'one-bit-adam:warmup=1000'
    """
    channel = Channel(ScaledSign(), ErrorFeedback(rescaled=False))
    return Method(ScatterGather(channel), Sync(of=Momentum(), warmup=warmup))
