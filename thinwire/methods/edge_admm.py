"""ADMM over edges: ranks minimise in the order of their numbers, with a dual variable for every edge.

Sends the model in float32 to every neighbour once per round; a round is `every` optimizer steps. Each rank keeps
three vectors, two of them in float64. With l_ji the dual of the edge j < i, P(i) the neighbours before and S(i) those
after rank i:

    x_i  = argmin f_i(x) + rho/2 sum_P |x_j(new) - x - l_ji / rho|^2 + rho/2 sum_S |x - x_j(old) - l_ij / rho|^2
    l_ji = l_ji - rho (x_j - x_i)

Of its duals a rank needs only their signed sum, so it keeps one vector for them whatever its degree: that makes it
D-ADMM in another order (thinwire/exchange/admm.py proves it). On a ring of n the last rank waits for n - 1 others,
where two colours need two turns: it is here to compare with. It converges at O(1/k) for convex losses.

Reference: Wei, Ozdaglar, "Distributed alternating direction method of multipliers", CDC 2012.

Departs from the paper: `every` steps of the optimizer on mini-batches, from where the last round ended, stand for the
argmin; the duals of a rank's edges are kept as their sum.
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.admm import Admm
from thinwire.topology.base import Topology


@method("edge-admm")
def edge_admm(rho: float = 0.5, topology: str | Topology = "ring", every: int = 10) -> Method:
    """ADMM in the order of ranks.

        rho        weight of the pull towards the neighbours, and step size of the duals l
        topology   the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology
        every      optimizer steps in one round: what stands for the argmin

    >>> edge_admm(topology="star").id
    'edge-admm:topology=star'
    """
    exchange = Admm(topology=graphs.get(topology), rho=rho, order="index")
    return Method(exchange, Sync(of=Param(), every=every))
