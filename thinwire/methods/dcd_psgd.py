"""DCD-PSGD: ranks send the compressed change of their model, and change it by what they sent.

Sends one compressed difference to every neighbour in every step, by default in 8 bits. Each rank keeps two
vectors: the weighted sum of differences to its neighbours, in float64, and what rounding takes off its model.

    q_i = C(sum_j W_ij (x_j - x_i) - lr g_i),    x_i = x_i + q_i

Neighbours know each other's models exactly. What C loses is lost, so C should be unbiased and lose little: with
4 bits or fewer the method diverges where DeepSqueeze and CHOCO-SGD do not. It is here to compare with.

Reference: Tang, Gan, Zhang, Zhang, Liu, "Communication compression for decentralized training", NeurIPS 2018,
arXiv 1803.06443, algorithm 1.

Departs from the paper: one vector in place of a copy of every neighbour's model (thinwire/exchange/dcd.py).
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.dcd import Dcd
from thinwire.methods._parts import made
from thinwire.topology.base import Topology


@method("dcd-psgd")
def dcd_psgd(compressor: str | Compressor = "qsgd:bits=8", topology: str | Topology = "ring") -> Method:
    """Compressed changes over neighbours.

        compressor   C: an id such as "qsgd:bits=4", or a Compressor of thinwire.compressors
        topology     W, the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology; fixed and
                     symmetric

    >>> dcd_psgd(compressor="qsgd:bits=4").id
    'dcd-psgd:compressor=(qsgd:bits=4)'
    """
    return Method(Dcd(Channel(made(compressor)), graphs.get(topology)), Sync(of=Param()))
