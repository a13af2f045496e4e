"""Local SGD: every rank trains by itself for `every` steps; then all models become their mean.

Sends the model in float32 once in `every` steps: at most 64 / `every` bits per element and step.

    x_i = x_i - lr g_i(x_i)    `every` times, then    x_i = (1/n) sum_j x_j

With every=1 it is synchronous SGD, with momentum too; with Adam it is not, since moments are not averaged. Momentum
and every other state of the optimizer stay each rank's own.

Reference: Stich, "Local SGD converges fast and communicates little", ICLR 2019, arXiv 1805.09767, algorithm 1.

Departs from the paper: nothing.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.core.signals import Param
from thinwire.exchange.all_reduce import AllReduce


@method("local-sgd")
def local_sgd(every: int = 8) -> Method:
    """The mean of the models, once in `every` steps.

        every   local steps from one mean to the next

    >>> local_sgd(every=4).id
    'local-sgd:every=4'
    """
    return Method(AllReduce(), Sync(of=Param(), every=every))
