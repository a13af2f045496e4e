"""D-ADMM: ranks minimise their own loss plus what pulls them to their neighbours, one colour of the graph at a time.

Sends the model in float32 to every neighbour once per round; a round is `every` optimizer steps. Each rank keeps
three vectors, two of them in float64. Ranks have colours such that no two neighbours share one; D_i is the number of
neighbours of rank i:

    v_i     = gamma_i - rho (sum of x_j, new from colours before that of i, old from those after it)
    x_i     = argmin f_i(x) + v_i'x + (D_i rho / 2) |x|^2
    gamma_i = gamma_i + rho sum_j (x_i - x_j)

At the fixed point every rank is at the optimum of the sum of all losses, whatever rho is: where gradients are not
stochastic, a constant learning rate leaves no floor. One colour works at a time while the others wait. Convergence is
proved for convex losses on graphs of two colours, and for strongly convex ones on others.

Reference: Mota, Xavier, Aguiar, Puschel, "D-ADMM: a communication-efficient distributed algorithm for separable
optimization", IEEE Transactions on Signal Processing 2013, arXiv 1202.2805.

Departs from the paper: `every` steps of the optimizer on mini-batches, from where the last round ended, stand for the
argmin. thinwire/exchange/admm.py has the order of sends.
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.admm import Admm
from thinwire.topology.base import Topology


@method("d-admm")
def d_admm(rho: float = 0.5, topology: str | Topology = "ring", every: int = 10) -> Method:
    """ADMM in the order of colours.

        rho        weight of the pull towards the neighbours, and step size of the dual gamma
        topology   the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology
        every      optimizer steps in one round: what stands for the argmin

    >>> d_admm(rho=0.1).exchange.penalty(rank=0, n=8)  # two neighbours
    0.2
    """
    exchange = Admm(topology=graphs.get(topology), rho=rho)
    return Method(exchange, Sync(of=Param(), every=every))
