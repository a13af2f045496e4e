"""signSGD with majority vote: one bit per element goes up, and the sign that most ranks sent comes back.

Sends 1 bit per element to the owners of shards and 1 bit back, every step; keeps no state.

    x = x - lr sign(sum_i sign(g_i))

A vote of n ranks, each wrong with probability p < 1/2, is wrong with the probability that more than half of them are.

Reference: Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with majority vote is communication efficient and
fault tolerant", ICLR 2019, arXiv 1810.05291, algorithm 1 with beta = 0.

Departs from the paper: its server is spread over the ranks, one shard each. sign(0) = +1, for a tie too.
"""

from __future__ import annotations

from thinwire.compressors.sign import Sign
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.scatter_gather import ScatterGather


@method("majority-vote", Recipe(momentum=0.0, lr=1e-3))
def majority_vote() -> Method:
    """The sign that most ranks sent.

    >>> majority_vote().id
    'majority-vote'
    """
    return Method(ScatterGather(Channel(Sign()), reduce="majority"))
