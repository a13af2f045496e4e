"""Asynchronous consensus ADMM: rank 0 waits for S workers, and for nobody longer than tau rounds.

Sends w_i = x_i + u_i / rho to rank 0 after every `every` optimizer steps through `compressor`, and z back in float32
to those whose report was used. Each worker keeps three vectors; rank 0 keeps z and the latest w_i of everybody.

    worker    u_i = u_i + rho (x_i - z)                                     when z comes
              x_i = argmin f_i(x) + u_i'x + rho/2 |x - z|^2
    server    z = argmin n l1 |z|_1 + sum_i rho/2 |w_i - z|^2               when S have reported, and all whose last
                                                                            report is tau - 1 rounds old

With tau = 1 it is consensus ADMM. Rank 0 ends with z.

Reference: Zhang, Kwok, "Asynchronous distributed ADMM for consensus optimization", ICML 2014; the rule is in
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


@method("async-admm")
def async_admm(
    rho: float = 0.5,
    least: int = 1,
    tau: int = 5,
    l1: float = 0.0,
    every: int = 10,
    compressor: str | Compressor = "identity",
    servers: int | None = None,
) -> Method:
    """ADMM with a server that waits for some.

        rho          weight of the pull towards z, and step size of the dual u
        least        S, the workers that must have reported before z changes
        tau          a report is used for at most tau rounds, its own among them; 1 waits for all
        l1           weight of an L1 regulariser of z, beside the mean of the workers' losses; 0 for none
        every        optimizer steps in one round: what stands for the argmin
        compressor   what the change of w_i goes through on its way up: an id such as "qsgd:bits=4", or a Compressor
                     of thinwire.compressors; "identity" sends w_i itself in float32
        servers      1: the last rank only serves; None: rank 0 serves beside its training

    >>> async_admm(least=2, tau=4).sync.staleness
    3
    """
    rule = ConsensusAdmm(rho, least, l1=l1, differences=not is_exact(compressor))
    sync = Sync(of=Param(), every=every, staleness=oldest("async_admm", tau))
    return Method(server(rule, compressor, servers=servers), sync)
