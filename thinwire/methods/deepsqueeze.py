"""DeepSqueeze: compressed models to the neighbours, and what compression left out is added to the next one.

Sends one compressed model per neighbour and step, by default in 4 bits; 4 bytes behind it if no `eta` is given.
Keeps one residual per rank and nothing of its neighbours.

    x_half_i = x_i - lr g_i(x_i)
    v_i = x_half_i + e_i,   m_i = C(v_i),   e_i = v_i - m_i
    x_i = x_half_i + eta sum_j (W_ij - 1[i = j]) m_j

Models mix as with W_eff = (1 - eta) I + eta W. Their mean is that of plain SGD, whatever C is. C must be a
contraction: an unbiased one that loses much is divided by 1 + omega. Without `eta` it is chosen from C, the graph,
the length of the local step and what messages scatter (thinwire/exchange/eta.py), for the sake of the mean model
(`wire.consensus()`): where ranks' own models count, a smaller one is better. Momentum is the optimizer's, and
each rank's own.

Reference: Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu, "DeepSqueeze: decentralization meets error-compensated
compression", 2019, arXiv 1907.07346.

Departs from the paper: accounts of it write C[g + delta], with g the gradient; here a rank compresses its model after
the local step plus the residual, as the code of CHOCO-SGD's authors does, since W_eff mixes models. Where no `eta` is
given, it follows the local step and is sent along, and the two ends of an edge take the smaller; the paper has one
eta for all steps. Unbiased compressors that lose much are divided by 1 + omega. Small tensors that `attach` does not
compress travel in float32 on the same graph, with eta = 1. `every` takes local steps between the exchanges. W may be
directed or change from step to step, where it is doubly stochastic.
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.mix import Mix
from thinwire.memory.error_feedback import ErrorFeedback
from thinwire.methods._parts import contraction
from thinwire.topology.base import Topology


@method("deepsqueeze")
def deepsqueeze(
    compressor: str | Compressor = "qsgd:bits=4",
    topology: str | Topology = "ring",
    eta: float | None = None,
    every: int = 1,
) -> Method:
    """Error-compensated models over neighbours.

        compressor   C: an id such as "topk:ratio=0.1", or a Compressor of thinwire.compressors
        topology     W, the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology
        eta          the step towards the neighbours, 0 to 1; None takes it from C and W, for the mean of the models;
                     where ranks' own models count, 0.05 or so keeps them nearer to the optimum
        every        optimizer steps from one exchange to the next

    >>> deepsqueeze(compressor="topk:ratio=0.1", eta=0.2).id
    'deepsqueeze:compressor=(topk:ratio=0.1),eta=0.2'
    """
    channel = Channel(contraction(compressor), ErrorFeedback())
    return Method(Mix(channel, graphs.get(topology), eta), Sync(of=Param(), every=every))
