"""AD-PSGD: every rank trains at its own pace, and meanwhile averages its model with one neighbour at a time.

Sends the model in float32 to one random neighbour per step, which sends its own back. The graph has two sides: the
ranks of one ask, those of the other answer. Threads do both while the gradient is computed, so that nobody waits for
a slow rank.

    x_i, x_j = (x_i + x_j) / 2        at any time, j a random neighbour of i
    x_i = x_i - lr g_i(x_i')          x_i' is the model as it was when the gradient was begun

The graph must be bipartite: a ring of an even number of ranks, a star, a hypercube. Results depend on timing: a run
does not repeat bit for bit.

Reference: Lian, Zhang, Zhang, Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018,
arXiv 1710.06952, algorithm 1.

Departs from the paper: any step of the optimizer is taken in place of -lr g. A rank that asks starts one exchange
per step, and at the next step waits for it if it is not finished. `compressor` may be given: it should lose little,
since what it loses is not sent later (thinwire/exchange/pairs.py).
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.pairs import Pairs
from thinwire.methods._parts import made
from thinwire.topology.base import Topology


@method("ad-psgd")
def ad_psgd(topology: str | Topology = "ring", compressor: str | Compressor = "identity") -> Method:
    """Average with one neighbour at a time, without waiting.

        topology     the graph, which must have two sides: an id such as "hypercube", or a Topology of
                     thinwire.topology
        compressor   what a model goes through: an id such as "qsgd:bits=8", or a Compressor of thinwire.compressors;
                     "identity" is float32

    >>> ad_psgd(topology="hypercube").id
    'ad-psgd:topology=hypercube'
    """
    return Method(Pairs(Channel(made(compressor)), graphs.get(topology)), Sync(of=Param(), staleness=None))
