"""CoCoD-SGD: the mean of the models is under way for a round, and each rank adds what it has learnt meanwhile.

Sends the model in float32 once in `every` steps: at most 64 / `every` bits per element and step, during a whole
round. Keeps the last mean and what was sent, on every rank.

    m = (1/n) sum_i x_i              launched when a round begins
    D_i = the `every` local steps of the round
    x_i = m + D_i                    when it ends

The mean of the models moves by the mean of the D_i, as if nobody had waited. Ranks differ; `wire.consensus()` is the
model to keep.

Reference: Shen, Xu, Liu, Chen, Zhang, Wang, Cheng, "Faster distributed deep net training: computation and
communication decoupled stochastic gradient descent", IJCAI 2019, arXiv 1906.12043.

Departs from the paper: it gives ranks batches by their speed; here the loader decides. The first round begins with
equal models, so that nothing is sent before it ends.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.sync.delta import Delta
from thinwire.sync.merges import Carried
from thinwire.sync.outer_steps import Sgd


@method("cocod-sgd")
def cocod_sgd(every: int = 8) -> Method:
    """Means that arrive a round later, to which the steps of that round are added.

        every   local steps of a round, during which the mean is under way

    >>> cocod_sgd(every=4).id
    'cocod-sgd:every=4'
    """
    return Method(AllReduce(), Sync(of=Delta(Sgd(1.0, 0.0), Carried(), delay=every), every=every))
