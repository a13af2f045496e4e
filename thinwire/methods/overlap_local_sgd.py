"""Overlap-Local-SGD: ranks are pulled towards an anchor that was their mean a round ago, and nobody waits for it.

Sends the model in float32 once in `every` steps: at most 64 / `every` bits per element and step, during a whole
round. Keeps the anchor z and its momentum on every rank.

    x_i = x_i - a (x_i - z)                                      once in `every` steps
    v = beta v + (1/n) sum_i x_i - z,    z = z + v               launched then, and there when it is used next

With beta=0, z is the mean of the models when it was launched. a=0 leaves ranks alone; a=1 would take z for x_i, and
lose the steps of the round. Ranks differ; `wire.anchor()` or `wire.consensus()` is the model to keep.

Reference: Wang, Liang, Joshi, "Overlap local-SGD: an algorithmic approach to hide communication delays in distributed
SGD", ICASSP 2020, arXiv 2002.09539, and the authors' code.

Departs from the code: there v is in units of a gradient, and follows a schedule of the learning rate. Ranks are
pulled for the first time after two rounds; there after one, towards the model from which all set out.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.sync.delta import Delta
from thinwire.sync.merges import Mixed
from thinwire.sync.outer_steps import Sgd


@method("overlap-local-sgd")
def overlap_local_sgd(every: int = 8, a: float = 0.6, beta: float = 0.7) -> Method:
    """Pulled by `a` towards an anchor with momentum `beta`.

        every   local steps of a round, during which the mean is under way
        a       how far ranks are pulled, 0 <= a < 1
        beta    momentum of the anchor

    >>> overlap_local_sgd(a=0.5).id
    'overlap-local-sgd:a=0.5'
    """
    if not 0 <= a < 1:
        raise ValueError(
            f"overlap_local_sgd(a={a}): a=1 would lose the steps of every round; write 0 <= a < 1, such as a=0.6"
        )
    of = Delta(Sgd(1.0, beta, nesterov=False), Mixed(1 - a), delay=every)
    return Method(AllReduce(), Sync(of=of, every=every))
