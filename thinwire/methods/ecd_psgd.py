"""ECD-PSGD: ranks send extrapolated models, and neighbours average them with weights that fall as 2/t.

Sends one compressed extrapolation to every neighbour in every step, by default in 8 bits. Each rank keeps
one vector, in float64.

    x_i' = sum_j W_ij y_j - lr g_i,   z_i = (1 - t/2) x_i + (t/2) x_i',   y_i = (1 - 2/t) y_i + (2/t) C(z_i)

Biased compressors are refused, and with few bits it stalls or diverges: z_i grows with t, and with it what C loses.
It is here to compare with.

Reference: Tang, Gan, Zhang, Zhang, Liu, "Communication compression for decentralized training", NeurIPS 2018,
arXiv 1803.06443, algorithm 2.

Departs from the paper: one vector in place of a copy of every neighbour's estimate (thinwire/exchange/ecd.py).
"""

from __future__ import annotations

from thinwire import topology as graphs
from thinwire.core.channel import Channel
from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.ecd import Ecd
from thinwire.methods._parts import made
from thinwire.topology.base import Topology


@method("ecd-psgd")
def ecd_psgd(compressor: str | Compressor = "qsgd:bits=8", topology: str | Topology = "ring") -> Method:
    """Compressed extrapolations over neighbours.

        compressor   C: an id such as "qsgd:bits=4", or a Compressor of thinwire.compressors; unbiased
        topology     W, the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology; fixed and
                     symmetric

    >>> ecd_psgd().id
    'ecd-psgd'
    """
    return Method(Ecd(Channel(made(compressor)), graphs.get(topology)), Sync(of=Param()))
