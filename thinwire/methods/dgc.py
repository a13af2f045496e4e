"""Deep gradient compression: every rank keeps the momentum, adds up its velocity, and sends the top-k of the sum.

Sends k = round(ratio d) values and places to every other rank, every step: at 0.1% about 44 bits each. Keeps u and v
on every rank.

    u = m u + g,    v = v + u,    q = the k largest of v,    v = v - q,  u = 0 where q is not 0
    x = x - (lr / n) sum_i q_i

Give the optimizer no momentum of its own: SGD(momentum=0). Small tensors that `attach` does not compress get
the same momentum: their u is sent whole. `warmup` is the number of steps in which the share goes from 1/4 to `ratio`
(the paper: 4 epochs). `clip` is the norm to which the sum of the ranks' gradients would be clipped. With momentum=0
the method is topk.

Reference: Lin, Han, Mao, Wang, Dally, "Deep gradient compression: reducing the communication bandwidth for
distributed training", ICLR 2018, arXiv 1712.01887, algorithm 4.

Departs from the paper: see thinwire.memory.momentum_correction and thinwire.compressors.dgc_topk. There is no warm-up
by default, because its length is in epochs.
"""

from __future__ import annotations

from thinwire.compressors.dgc_topk import DgcTopK
from thinwire.compressors.sparse import Values
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.momentum_correction import MomentumCorrection


@method("dgc", Recipe(momentum=0.0))
def dgc(
    ratio: float = 0.001,
    momentum: float = 0.9,
    nesterov: bool = False,
    clip: float | None = None,
    warmup: int = 0,
    values: Values = "fp32",
) -> Method:
    """The largest `ratio` of the accumulated velocity.

        ratio      k/d, the share of the elements that is sent
        momentum   m; with 0 the method is topk
        nesterov   Nesterov's momentum: u = m (u + g), v = v + u + g
        clip       norm to which the sum of the ranks' gradients is clipped, each rank's to clip / sqrt(n); None does
                   not clip
        warmup     steps in which the share falls from 1/4 to `ratio`: to a fourth of itself after every quarter of
                   them
        values     how values are written: "fp32", "bf16" or "fp16"

    >>> dgc(warmup=500).id
    'dgc:warmup=500'
    """
    memory = MomentumCorrection(momentum, nesterov, clip)
    return Method(AllGather(Channel(DgcTopK(ratio, warmup, values), memory)))
