"""D-PSGD: every rank averages its model with its neighbours' on a graph, and takes its own gradient step.

Sends the model in float32 to every neighbour in every step: 2 copies on a ring, whatever the number of ranks.

    x_i = sum_j W_ij x_j - lr g_i(x_i)

The models before the step are mixed, so that they travel while backward runs. With `early=False` the models after the
step are mixed, which on a complete graph is synchronous SGD. Momentum is the optimizer's, and each rank's own. W is
doubly stochastic; ranks stay apart by about lr over the spectral gap.

Reference: Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can decentralized algorithms outperform centralized algorithms? A
case study for decentralized parallel stochastic gradient descent", NeurIPS 2017, arXiv 1705.09056, algorithm 1.

Departs from the paper: W need not be symmetric, and may change from step to step; any step of the optimizer is taken
in place of -lr g. `every` takes local steps between the exchanges.
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.mix import Mix
from thinwire.topology.base import Topology


@method("d-psgd")
def d_psgd(topology: str | Topology = "ring", early: bool = True, every: int = 1) -> Method:
    """Average models over neighbours.

        topology   W, the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology
        early      mix the models before the step, while backward runs; False mixes those after it
        every      optimizer steps from one exchange to the next

    >>> d_psgd(topology="torus").id
    'd-psgd:topology=torus'
    """
    return Method(Mix(topology=graphs.get(topology), eta=1.0, early=early), Sync(of=Param(), every=every))
