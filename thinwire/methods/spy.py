"""SPY: a server for regularised problems to which workers send random elements of their steps.

Sends a share p of the elements of what changed to the servers through `compressor`, without their places, which
follow from the seed; and back what has changed of the model since the last answer. Nobody waits for anybody.

    worker    x_i[S] = (x - gamma g_i(x))[S], the others stay       S: each element with probability p
    server    x = prox of gamma r at xbar = (1/n) sum_i x_i         r(x) = l1 |x|_1

gamma is the learning rate, and need not shrink with delays: where the sum of losses is strongly convex, gradients are
exact and gamma <= 2 / (mu + L), the error falls at a linear rate. In L1-regularised problems the zeros of the optimum
are found after some time, and answers become as sparse as it is.

Reference: Grishchenko, Iutzeler, Malick, Amini, "Distributed learning with sparse communications by identification",
2020, arXiv 1812.03871; the rule is in `thinwire/server/spy.py`.

Departs from the paper: the mask is uniform and does not follow the support. Mini-batches stand for the whole data of
a worker, and then an error of their size remains.
"""

from __future__ import annotations

from thinwire.core.compressor import Compressor
from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.methods._parts import server
from thinwire.server.spy import Spy


@method("spy")
def spy(
    p: float = 0.1, l1: float = 0.0, compressor: str | Compressor = "identity", servers: int | None = None
) -> Method:
    """Asynchronous proximal gradient steps with a sparse way up.

        p            the chance of an element to be sent; 1 for all
        l1           weight of the L1 regulariser; 0 for none
        compressor   what the elements go through on their way up: an id such as "qsgd:bits=8", or a Compressor of
                     thinwire.compressors; "identity" is float32
        servers      how many ranks, the last ones, only serve; None: every rank serves a shard beside its training

    >>> spy(p=0.3, l1=0.01).id
    'spy:p=0.3,l1=0.01'
    """
    return Method(server(Spy(p, l1), compressor, servers=servers), Sync(staleness=None))
