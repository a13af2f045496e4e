"""SGP, stochastic gradient push: models are averaged along the arrows of a directed graph, one neighbour per step.

Sends the model in float32 to one other rank per step, whatever the number of ranks, and 8 bytes more where the graph
gives some ranks more than others. On the default graph the peer is 1, 2, 4, ... ranks away in turn, and 2^m ranks
reach the exact mean of their models in m steps.

    y_i = sum_j W_ij (w_j z_j - lr g_j(z_j)),    w_i = sum_j W_ij w_j,    z_i = y_i / w_i

The columns of W sum to one. Gradients are taken at z_i, the parameters of the model. Momentum is the optimizer's, and
each rank's own.

Reference: Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019, arXiv
1811.10792, algorithm 1.

Departs from the paper: any step of the optimizer is taken in place of -lr g, and `every` takes several of them
between the exchanges. Messages are never late: the overlapped variant is not here.
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.push_sum import PushSum
from thinwire.topology.base import Topology


@method("sgp")
def sgp(topology: str | Topology = "one-peer", every: int = 1) -> Method:
    """Average models over the arrows of a graph.

        topology   W, the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology; it may have
                   directions and change from step to step
        every      optimizer steps from one exchange to the next

    >>> sgp(topology="exponential").id
    'sgp:topology=exponential'
    """
    return Method(PushSum(topology=graphs.get(topology)), Sync(of=Param(), every=every))
