"""Consensus ADMM: workers minimise their own loss plus a pull to a common model, which rank 0 makes of all.

Sends w_i = x_i + u_i / rho to rank 0 once per round through `compressor`, and z back in float32; a round is `every`
optimizer steps. Each worker keeps three vectors; rank 0 keeps z and the latest w_i of everybody.

    x_i = argmin f_i(x) + u_i'x + rho/2 |x - z|^2
    z   = argmin n l1 |z|_1 + sum_i rho/2 |w_i - z|^2         the mean of the w_i, where l1 = 0
    u_i = u_i + rho (x_i - z)

At the fixed point every worker is at the optimum of the sum of all losses, whatever rho is: where gradients are not
stochastic, a constant learning rate leaves no floor. Rank 0 ends with z.

Reference: Boyd, Parikh, Chu, Peleato, Eckstein, "Distributed optimization and statistical learning via the
alternating direction method of multipliers", 2011, section 7.1; the rule is in `thinwire/server/admm.py`.

Departs from the paper: `every` steps of the optimizer on mini-batches, from where the last round ended, stand for the
argmin. With a compressor, what changes of w_i is sent, which the paper does not consider.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.methods._parts import is_exact, server
from thinwire.server.admm import ConsensusAdmm


@method("consensus-admm")
def consensus_admm(
    rho: float = 0.5,
    l1: float = 0.0,
    every: int = 10,
    compressor: str | Compressor = "identity",
    servers: int | None = None,
) -> Method:
    """ADMM with a server that waits for all.

        rho          weight of the pull towards z, and step size of the dual u
        l1           weight of an L1 regulariser of z, beside the mean of the workers' losses; 0 for none
        every        optimizer steps in one round: what stands for the argmin
        compressor   what the change of w_i goes through on its way up: an id such as "qsgd:bits=4", or a Compressor
                     of thinwire.compressors; "identity" sends w_i itself in float32
        servers      1: the last rank only serves; None: rank 0 serves beside its training

    >>> consensus_admm(rho=0.1).sync.every
    10
    """
    rule = ConsensusAdmm(rho, l1=l1, differences=not is_exact(compressor))
    return Method(server(rule, compressor, servers=servers), Sync(of=Param(), every=every))
