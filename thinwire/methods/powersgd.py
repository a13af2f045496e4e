"""PowerSGD: low-rank gradients, found by power iteration over the steps, with error feedback, summed on the wire.

Sends 32 r (m + k) bits for an m x k matrix through two all-reduces, every step; keeps a residual on every rank and
the last factor on all.

    M_i = g_i + e_i;    P^ = orthonormal(mean_i M_i Q);    Q = mean_i M_i' P^
    x = x - lr P^ Q';    e_i = M_i - P^ Q'

Reference: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
optimization", NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2.

Departs from the paper: see thinwire.exchange.power_sgd. The paper's momentum, which comes after the mean, is that of
the optimizer.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.exchange.power_sgd import PowerSgd


@method("powersgd")
def powersgd(rank: int = 2, iterations: int = 1, least: float = 2.0) -> Method:
    """Rank `rank`, where that makes a matrix smaller by a factor of at least `least`.

        rank         r, columns of P and Q
        iterations   power iterations per step: how often both sums are repeated
        least        a matrix that would shrink by less than this factor is averaged in float32

    >>> powersgd(rank=4).id
    'powersgd:rank=4'
    """
    return Method(PowerSgd(rank, iterations, least))
