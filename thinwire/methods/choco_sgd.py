"""CHOCO-SGD: neighbours keep an estimate of each other's model, and only what it misses is sent, compressed.

Sends one compressed difference per neighbour and step, by default in 4 bits. Keeps two vectors per rank, whatever the
degree: the own estimate, and the weighted sum of differences to the neighbours', both in float64.

    x_half_i = x_i - lr g_i(x_i)
    q_i = C(x_half_i - h_i),   h_i = h_i + q_i            at i and its neighbours
    x_i = x_half_i + eta sum_j W_ij (h_j - h_i)

The mean of the models is that of plain SGD, whatever C is. As models settle, so do the differences, and with them
what compression loses. C must be a contraction: an unbiased one that loses much is divided by 1 + omega. Without
`eta` it is chosen from C and the graph (thinwire/exchange/eta.py). Momentum is the optimizer's, and each rank's own,
as in the authors' code.

Reference: Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
communication", ICML 2019, arXiv 1902.00340, algorithms 2 and 6.

Departs from the paper: estimates start at the common model, not at zero, so that the first message is a difference,
too; the memory-light form keeps sum_j W_ij (h_j - h_i) (thinwire/exchange/mix.py says why). `copies` keeps every
neighbour's estimate instead, so that `attach(drop_dead=True)` can drop one.
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.mix import Mix
from thinwire.memory.difference import Difference
from thinwire.methods._parts import contraction
from thinwire.topology.base import Topology


@method("choco-sgd")
def choco_sgd(
    compressor: str | Compressor = "qsgd:bits=4",
    topology: str | Topology = "ring",
    eta: float | None = None,
    copies: bool = False,
    every: int = 1,
) -> Method:
    """Compressed differences over neighbours.

        compressor   C: an id such as "topk:ratio=0.1", or a Compressor of thinwire.compressors
        topology     W, the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology
        eta          the step towards the neighbours, 0 to 1; None takes it from C and W
        copies       keep an estimate h_j of every neighbour, so that attach(drop_dead=True) can drop one, in place of
                     their sum
        every        optimizer steps from one exchange to the next

    >>> choco_sgd(compressor="topk:ratio=0.1").exchange.step(8)  # doctest: +ELLIPSIS
    0.37...
    """
    channel = Channel(contraction(compressor), Difference())
    return Method(Mix(channel, graphs.get(topology), eta, copies=copies), Sync(of=Param(), every=every))
