"""1-bit SGD: the sign of every element and two means per column, with error feedback in both directions.

Sends 1 bit per element and 64 bits per column to the owners of shards, and as much back, every step. Keeps a residual
e of the gradient on every rank and one, e', of the mean on the owner of each shard.

    p_i = g_i + e_i,         e_i = p_i - Q(p_i)        on every rank
    p' = mean_i Q(p_i) + e',   e' = p' - Q(p')         on the owner;    x = x - lr Q(p')

Reference: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs", Interspeech 2014, section 3.

Departs from the paper: the printed residual forgets the old one, which contradicts its text and diverges; ours keeps
it. The paper's owner applies AdaGrad before it quantises; here the optimizer comes after the exchange. A column that
a shard's edge cuts has means on either side of it.
"""

from __future__ import annotations

from thinwire.compressors.one_bit import OneBit
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.memory.error_feedback import ErrorFeedback


@method("one-bit-sgd")
def one_bit_sgd() -> Method:
    """One bit per element and two means per column, in both directions.

    >>> one_bit_sgd().id
    'one-bit-sgd'
    """
    return Method(ScatterGather(Channel(OneBit(), ErrorFeedback())))
