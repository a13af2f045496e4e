"""Local SGD: every rank trains by itself for `every` steps; then all models become their mean.

Sends how far the model has moved, in float32, once in `every` steps: 64 (n-1)/n / `every` bits per element and step.
Keeps one more copy of the model, from which the ranks set out.

    x_i = x_i - lr g_i(x_i)    `every` times, then    x_i = anchor = (1/n) sum_j x_j

With every=1 it is synchronous SGD, also with heavy-ball or Nesterov momentum, whose steps are linear in the
gradients; with Adam it is not. Momentum and every other state of the optimizer stay each rank's own, or are averaged
with the model (`moments="mean"`, which sends them too; `pr_sgd` is that).

Reference: Stich, "Local SGD converges fast and communicates little", ICLR 2019, arXiv 1805.09767, algorithm 1.

Departs from the paper: any optimizer takes the local steps. What is sent is anchor - x_i, whose mean leads to the
mean of the models, to the rounding of float32.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import MEAN
from thinwire.sync.delta import Delta, Share


@method("local-sgd")
def local_sgd(every: int = 8, moments: Share = "leave", buffers: Share = "leave") -> Method:
    """The mean of the models, once in `every` steps.

        every     local steps from one mean to the next
        moments   "mean": the moments of the ranks' optimizers are averaged, too; "leave": each rank keeps its own
        buffers   "mean": so are BatchNorm's buffers; "leave": each rank keeps its own

    >>> local_sgd(every=4).id
    'local-sgd:every=4'
    """
    return Method(AllReduce(), Sync(of=Delta(MEAN, moments=moments, buffers=buffers), every=every))
