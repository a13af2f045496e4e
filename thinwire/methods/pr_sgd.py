"""PR-SGD with momentum: local steps with momentum; then models and momenta of all ranks become their means.

Sends how far the model has moved and the momentum, in float32, once in `every` steps: twice as much as local SGD.
Keeps one more copy of the model, from which the ranks set out.

    u_i = beta u_i + g_i(x_i),    x_i = x_i - lr u_i    `every` times, then
    u_i = (1/n) sum_j u_j,    x_i = (1/n) sum_j x_j

beta is the momentum of the optimizer (torch.optim.SGD). With every=1 it is synchronous SGD with momentum.

Reference: Yu, Jin, Yang, "On the linear speedup analysis of communication efficient momentum SGD for distributed
non-convex optimization", ICML 2019, arXiv 1905.03817, algorithm 1. Yu, Yang, Zhu, "Parallel restarted SGD with faster
convergence and less communication", AAAI 2019, arXiv 1807.06629, for the form without momentum.

Departs from the papers: whatever the optimizer keeps in the shape of a parameter is averaged, with Adam both moments.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_reduce import AllReduce
from thinwire.methods._parts import MEAN
from thinwire.sync.delta import Delta, Share


@method("pr-sgd")
def pr_sgd(every: int = 8, buffers: Share = "leave") -> Method:
    """The means of models and momenta, once in `every` steps.

        every     I, local steps from one mean to the next
        buffers   "mean": BatchNorm's buffers are averaged, too; "leave": each rank keeps its own

    >>> pr_sgd(every=4).id
    'pr-sgd:every=4'
    """
    return Method(AllReduce(), Sync(of=Delta(MEAN, moments="mean", buffers=buffers), every=every))
