"""SlowMo: local steps and an average; then a slow momentum step along the way that the average went.

Sends how far the model has moved, in float32, once in `every` steps: 64 (n-1)/n / `every` bits per element and step;
on a graph, the model to the neighbours. Keeps the model from which the ranks set out, and u.

    x = mean of the x_i after `every` steps x_i = x_i - gamma g_i(x_i)
    u = beta u + (x_old - x) / gamma
    x_i = x_old - alpha gamma u

gamma is the learning rate of the round, so that u is in units of a gradient, and a change of gamma rescales what it
does. With alpha=1 and beta=0 it is local SGD. On a graph (`topology`) the average is that over neighbours, of SGP:
x_old and u are then each rank's own; with alpha=1 and beta=0 that is `sgp(topology, every)`, and on a graph of
two-sided edges `d_psgd(topology, early=False, every)`.

Reference: Wang, Tantia, Ballas, Rabbat, "SlowMo: improving communication-efficient distributed SGD with slow
momentum", ICLR 2020, arXiv 1910.00643, algorithm 1.

Departs from the paper: on a graph ranks gossip once per round, where the paper's SGP gossips in every step, and there
is no exact average before the slow step (the paper's "noaverage"). Where gamma is 0 the model moves by alpha (x_old -
x).
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.exchange import Exchange
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.push_sum import PushSum
from thinwire.sync.delta import Delta, Share
from thinwire.sync.outer_steps import SlowMomentum
from thinwire.topology.base import Topology


@method("slowmo")
def slowmo(
    every: int = 12,
    alpha: float = 1.0,
    beta: float = 0.5,
    topology: str | Topology | None = None,
    buffers: Share = "leave",
) -> Method:
    """Slow momentum over local steps.

        every      tau, local steps from one slow step to the next
        alpha      the slow learning rate
        beta       what a slow step leaves of u; more for more ranks: the authors take 0.2 to 0.6
        topology   None: the mean of all ranks; otherwise a graph, as an id such as "one-peer", or a Topology of
                   thinwire.topology
        buffers    "mean": BatchNorm's buffers are averaged over all ranks; "leave": each rank keeps its own

    >>> slowmo(beta=0.6, topology="one-peer").id
    'slowmo:beta=0.6,topology=one-peer'
    """
    exchange: Exchange = AllReduce() if topology is None else PushSum(topology=graphs.get(topology))
    return Method(exchange, Sync(of=Delta(SlowMomentum(alpha, beta), buffers=buffers), every=every))
