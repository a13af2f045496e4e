"""AD-ADMM: asynchronous consensus ADMM in which the dual follows the z that a worker has used.

Sends w_i = x_i + u_i / rho to rank 0 after every `every` optimizer steps through `compressor`, and z back in float32
to those whose report was used. Each worker keeps three vectors; rank 0 keeps z and the latest w_i of everybody.

    worker    x_i = argmin f_i(x) + u_i'x + rho/2 |x - z_i|^2               z_i: the last z that it was sent
              u_i = u_i + rho (x_i - z_i)
    server    z = argmin n l1 |z|_1 + sum_i rho/2 |w_i - z|^2 + gamma/2 |z - z_old|^2
                                                                            when A have reported, and all whose last
                                                                            report is tau - 1 rounds old

The older reports may be, the larger gamma must be to converge for certain: with n workers of which at most S report
per round, gamma > (S (1 + rho^2) (tau - 1)^2 - n rho) / 2. Rank 0 ends with z.

Reference: Chang, Hong, Liao, Wang, "Asynchronous distributed ADMM for large-scale optimization - part I: algorithm
and convergence analysis", IEEE Transactions on Signal Processing 2016, arXiv 1509.02597; the rule is in
`thinwire/server/admm.py`.

Departs from the paper: `every` steps of the optimizer on mini-batches, from where the last round ended, stand for the
argmin; w_i is sent in place of x_i and u_i, and with a compressor what changes of it.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.methods._parts import is_exact, oldest, server
from thinwire.server.admm import ConsensusAdmm


@method("ad-admm")
def ad_admm(
    rho: float = 0.5,
    least: int = 1,
    tau: int = 5,
    gamma: float = 0.0,
    l1: float = 0.0,
    every: int = 10,
    compressor: str | Compressor = "identity",
    servers: int | None = None,
) -> Method:
    """ADMM with a server that waits for some, and duals that do not wait for its answer.

        rho          weight of the pull towards z, and step size of the dual u
        least        A, the workers that must have reported before z changes
        tau          a report is used for at most tau rounds, its own among them; 1 waits for all
        gamma        how hard z is held back at what it was; 0 for not at all
        l1           weight of an L1 regulariser of z, beside the mean of the workers' losses; 0 for none
        every        optimizer steps in one round: what stands for the argmin
        compressor   what the change of w_i goes through on its way up: an id such as "qsgd:bits=4", or a Compressor
                     of thinwire.compressors; "identity" sends w_i itself in float32
        servers      1: the last rank only serves; None: rank 0 serves beside its training

    >>> ad_admm(tau=3, gamma=2.0).id
    'ad-admm:tau=3,gamma=2'
    """
    rule = ConsensusAdmm(rho, least, "report", gamma, l1, not is_exact(compressor))
    sync = Sync(of=Param(), every=every, staleness=oldest("ad_admm", tau))
    return Method(server(rule, compressor, servers=servers), sync)
