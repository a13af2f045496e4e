"""Moniqua: models go over the wire modulo a length, in few bits, and neighbours fill in the rest from their own.

Sends b bits per element, by default 8, and 8 bytes more to every neighbour in every step. Keeps nothing. With delta =
2^-(b+1) and B = 2 theta / (1 - 2 delta):

    q_i    = x_half_i mod B, rounded to one of 2^b points
    xhat_j = the number nearest to x_half_i that is q_j mod B
    x_i    = x_half_i + eta sum_j W_ij (xhat_j - xhat_i)

`theta` must be above the distance, in any element, between two neighbours' models after their step: a checksum in
each message tells where it is not, and training stops with an error. It is an absolute size: it grows with the
learning rate, and with `every`. The mean of the models is that of plain SGD. For 1 bit write
moniqua(bits=1, eta=0.2, rounding="shared") and a larger theta: thinwire/exchange/moniqua.py says why.

Reference: Lu, De Sa, "Moniqua: modulo quantized communication in decentralized SGD", ICML 2020, arXiv 2002.11787.

Departs from the paper: models are mixed after the local step, x_half, where the paper mixes those before it and then
adds -lr g(x); so nothing is sent while backward runs, theta must hold after the step, and any optimizer's steps,
`every` of them, stand for -lr g. theta is given, not derived from bounds on gradients. The checksum is ours.
"""

from __future__ import annotations

from typing import Literal

from thinwire import topology as graphs
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.moniqua import Moniqua
from thinwire.topology.base import Topology


@method("moniqua")
def moniqua(
    bits: int = 8,
    theta: float = 1.0,
    topology: str | Topology = "ring",
    eta: float = 1.0,
    rounding: Literal["nearest", "shared"] = "nearest",
    every: int = 1,
) -> Method:
    """Models modulo a length.

        bits       b, bits per element
        theta      bound on the distance of two neighbours' models in any element
        topology   W, the graph: an id such as "torus:rows=4", or a Topology of thinwire.topology
        eta        the step towards the neighbours, 0 to 1
        rounding   "nearest", or "shared": the grid is moved at random in every step, on all ranks alike
        every      optimizer steps from one exchange to the next

    >>> moniqua(bits=4, theta=0.25).id
    'moniqua:bits=4,theta=0.25'
    """
    return Method(Moniqua(bits, theta, graphs.get(topology), eta, rounding), Sync(of=Param(), every=every))
