"""SIGNUM with majority vote: as signSGD with a vote, but each rank sends the sign of its momentum.

Sends 1 bit per element to the owners of shards and 1 bit back, every step; each rank keeps one moving average m.

    m_i = beta m_i + (1 - beta) g_i,    x = x - lr sign(sum_i sign(m_i))

Use it with plain SGD: the momentum is here.

Reference: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimisation for non-convex problems",
ICML 2018, arXiv 1802.04434, algorithm 2, and algorithm 1 of arXiv 1810.05291 for the vote.

Departs from the paper: its server is spread over the ranks, one shard each. sign(0) = +1, for a tie too.
"""

from __future__ import annotations

from thinwire.compressors.sign import Sign
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.memory.momentum import LocalMomentum


@method("signum", Recipe(momentum=0.0, lr=1e-3))
def signum(beta: float = 0.9) -> Method:
    """The vote on momenta that forget with factor `beta`.

        beta   what a step leaves of the moving average m

    >>> signum(beta=0.99).id
    'signum:beta=0.99'
    """
    return Method(ScatterGather(Channel(Sign(), LocalMomentum(beta)), Channel(Sign()), reduce="majority"))
