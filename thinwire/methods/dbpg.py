"""Delayed block proximal gradient: sparse models with an L1 regulariser, on a server that lets workers run ahead.

Sends one block of each shard of a gradient to its server, less what the filters leave out, through `compressor`, and
back what has changed of the model. All workers draw the same block R_t for iteration t.

    worker    g_i on R_t; begins iteration t when all before t - tau are complete
    server    w = soft(w - eta g / h, eta l1 / h) on R_t, with g the mean of all g_i       eta: the learning rate

h is 1, or the mean of a diagonal of the Hessian that the training loop puts into an attribute of each parameter:

    model.weight.diag_h = ...                   # before optimizer.step(), with curvature="diag_h"

Converges for eta <= 1 / ((1 + tau) L + eps), with h = 1 and L the Lipschitz constant of the mean gradient.

References: Li, Andersen, Park, et al., "Scaling distributed machine learning with the parameter server", OSDI 2014,
algorithm 3. Li, Andersen, Smola, Yu, "Communication efficient distributed machine learning with the parameter
server", NeurIPS 2014. The rule is in `thinwire/server/dbpg.py`.

Departs from the papers: the gradient is divided by h, without which the optimum would be no fixed point where h is
not 1. A worker that is ahead is answered with the model as it is, instead of going on with what it has.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.dbpg import Dbpg


@method("dbpg")
def dbpg(
    l1: float = 0.0,
    blocks: int = 1,
    tau: int = 4,
    curvature: str | None = None,
    kkt: float = 0.0,
    skip: float = 0.0,
    significant: float = 0.0,
    cache_keys: bool = True,
    compressor: str | Compressor = "identity",
    servers: int | None = None,
) -> Method:
    """Proximal gradient steps on one block at a time.

        l1            weight of the L1 regulariser; 0 for none
        blocks        ranges that the model is cut into; a gradient is sent for one of them
        tau           iterations that a worker may be ahead of the last complete one; 0 waits for all
        curvature     the attribute of parameters that holds the diagonal of a Hessian; None for steps of eta
        kkt           elements of w that are zero are not sent where a worker's own |g| is at most this, below l1;
                      some that are not zero at the optimum may then stay zero
        skip          the chance of an element not to be sent
        significant   answers leave out what has moved by at most significant / (t + 1)
        cache_keys    whether keys that were sent before are sent as a checksum
        compressor    what the values go through on their way up: an id such as "qsgd:bits=8", or a Compressor of
                      thinwire.compressors; "identity" is float32
        servers       how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> dbpg(l1=0.01, kkt=0.009, tau=8).sync.staleness
    8
    """
    rule = Dbpg(l1, blocks, curvature, kkt, skip, significant, cache_keys)
    return Method(server(rule, compressor, servers=servers), Sync(staleness=tau))
