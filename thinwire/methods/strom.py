"""Strom's threshold: an element that has gathered tau sends its sign, and keeps the rest.

Sends one bit and a place for each element that reaches tau, to every other rank, every step. Each rank keeps one
residual r.

    r = r + g;    where |r_i| >= tau: q_i = tau sgn(r_i), r_i = r_i - q_i;    x = x - (lr / n) sum_i q_i

`tau` is in units of the gradient: an element sends at most tau per step, so a tau far below the gradients lags
behind them, and one far above them sends nothing for long.

Reference: Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015.

Departs from the paper: ranks exchange in step, where the paper's are asynchronous.
"""

from __future__ import annotations

from thinwire.compressors.strom import Strom
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.error_feedback import ErrorFeedback


@method("strom")
def strom(tau: float = 0.01) -> Method:
    """Signs of what has gathered `tau`.

        tau   the threshold and the size of what is sent, in units of the gradient

    >>> strom(tau=0.5).id
    'strom:tau=0.5'
    """
    return Method(AllGather(Channel(Strom(tau), ErrorFeedback())))
